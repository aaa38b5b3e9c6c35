// Package multi makes one connector of several, in order: for instance a host
// tier that keeps the KV of preempted requests, and the pull from a prefiller.
//
// # Rules
//
//  1. A child that holds recovery state for a request is asked first, and its
//     answer alone counts if it offers or is pending: nobody else can bring back
//     a preempted request's last, partial block.
//  2. Else the children are asked in order, each for what follows the hits of
//     those before it. Hits that meet at a block border form one load plan; each
//     child loads its own part and knows what the others load.
//  3. A load is received when every child of its plan has reported it, a hold is
//     sent when every child that asked for it has. A child's second report, or
//     one that nobody waits for, is dropped and counted.
//  4. Saves of any child precede everything else of a step.
//  5. At most one child answers a finished request with parameters; of several
//     the first counts, and the conflict is counted.
//  6. A child that refuses work fails those loads and holds at once; the others
//     go on.
package multi
