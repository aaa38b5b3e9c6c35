package ascendrt

// CaptureOptions are the choices at Capture.
type CaptureOptions struct {
	// Updatable names the commands whose slots Graph.Update may change.
	Updatable []OpRef
	// Workspace is frozen for the graph's life: the maximum over its shapes.
	Workspace View
	// Upload moves the graph to the device at once instead of at its first launch.
	Upload UploadTime
}

// UploadTime says when a graph reaches the device.
type UploadTime uint8

const (
	// UploadLazy: at the first launch.
	UploadLazy UploadTime = iota
	// UploadNow: within Capture.
	UploadNow
)

// String names the choice.
func (u UploadTime) String() string {
	if u == UploadNow {
		return "now"
	}
	return "lazy"
}

// Graph is a captured buffer, launched with Commands.Graph.
type Graph interface {
	// Update changes slots for every launch submitted after it returns. A slot
	// of a command that was not named updatable, or a value that the runtime
	// cannot take in place, gives ErrGraphUpdate and changes nothing.
	Update(u []Slot) error
	// Info says what the graph costs while it exists.
	Info() GraphInfo
	// Ref names the graph in command records.
	Ref() Ref
	// Close releases the graph after its last launch has passed. Idempotent.
	Close() error
}

// Slot is a new value for one slot of one command of a graph.
type Slot struct {
	Op   OpRef
	Slot int     // index into Op.Slots; for Launch: index of the 8-byte argument word
	I64  []int64 // SlotInts and SlotWord
	Addr View    // SlotAddr: the new place, at least as long as the old one
}

// GraphInfo is what a graph costs.
type GraphInfo struct {
	Nodes       int
	Streams     int    // streams that the graph consumes while it exists
	DeviceBytes uint64 // 0 if unknown
}
