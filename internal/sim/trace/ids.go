package trace

import "fmt"

// IDs says where a block id names one block.
type IDs uint8

const (
	// Detect tells by the ids: where sessions number their blocks from 1 on, each for itself, they are SessionIDs.
	Detect IDs = iota
	// FileIDs hold in the whole file.
	FileIDs
	// SessionIDs hold in their session.
	SessionIDs
)

var idNames = [...]string{Detect: "auto", FileIDs: "file", SessionIDs: "session"}

func (i IDs) String() string {
	if int(i) < len(idNames) {
		return idNames[i]
	}
	return fmt.Sprintf("IDs(%d)", uint8(i))
}

// ParseIDs reads the name of a choice.
func ParseIDs(s string) (IDs, error) {
	for i, name := range idNames {
		if s == name {
			return IDs(i), nil
		}
	}
	return 0, fmt.Errorf("ids %q: want auto, file or session", s)
}

// Resolve is the choice itself, or what the trace's ids say where it is Detect:
// in most sessions a new block then has the number that follows the largest one
// so far.
func (t *Trace) Resolve(choice IDs) IDs {
	if choice != Detect {
		return choice
	}
	largest := map[string]int64{}
	gaps := map[string]bool{}
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Session == "" {
			return FileIDs
		}
		top := largest[r.Session]
		for _, run := range r.Blocks {
			if run.Start > top+1 {
				gaps[r.Session] = true
			}
			top = max(top, run.Start+run.Len-1)
		}
		largest[r.Session] = top
	}
	if len(largest) > 1 && 2*len(gaps) < len(largest) {
		return SessionIDs
	}
	return FileIDs
}
