// Package executor runs the steps of one data-parallel rank on a device: it
// owns the weights, the paged KV cache, the buffers of a step and the captured
// graphs, and turns a batch of rows into device commands.
//
// All per-step inputs (token ids, positions, cache slots, query starts,
// lengths, output rows, block tables) lie at fixed places of one metadata
// buffer. A step patches a pinned image of it and submits one command buffer:
// copy the metadata, run the forward pass or launch a captured graph of it, and
// copy the sampled tokens back. A sampled token also stays on the device, in a
// cell of its request's slot, so that the next step can be submitted before the
// host has seen it.
//
// Within a layer all keys and values of the step are written before attention
// reads any, so rows of one step may share blocks that the step itself fills.
//
// Every operation of the host device sums each output element in a fixed order,
// whatever else is in the batch; results therefore do not depend on how prompts
// are cut into steps, on padding, or on eager or graph execution.
//
// Where the device has fused operations (bfloat16 on Hopper GPUs), a layer is six
// of them. They take and leave sampled tokens in the cells themselves, and sum in
// an order of their own: there a prompt cut differently agrees within rounding.
package executor
