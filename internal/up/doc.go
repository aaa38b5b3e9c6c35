// Package up starts a P/D cluster on one machine as child processes of the
// same executable and looks after them: it waits until each is ready, keeps
// their logs, notices when one dies, and ends them cleanly.
//
// A Supervisor owns the children. Each child has two owned goroutines (its
// output, its wait) that end with the process; StopAll ends every process and
// returns after the last of them.
package up
