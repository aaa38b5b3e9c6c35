//go:build !unix

package points

import "time"

// processorTime is what this process has used; 0 where the system does not tell.
func processorTime() time.Duration { return 0 }
