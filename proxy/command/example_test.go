package command_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/proxy/command"
)

// A binary of one's own: what it brings along, such as stores of sessions, goes
// into the options. --check says what is in force, or what is wrong, and ends.
func ExampleNew() {
	cmd := command.New(command.Options{})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"--prefiller-hosts", "p", "--prefiller-ports", "8100", "--check"})
	fmt.Println(cmd.Execute())
	// Output:
	// no decoder is given: name hosts and ports, an instances file or a membership
}
