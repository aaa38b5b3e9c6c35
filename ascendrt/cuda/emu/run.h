#pragma once
#include <cstdint>

// A kernel whose parameters are up to 24 words of 8 bytes.
typedef void (*emu_kernel)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
	uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

// emu_run runs a grid; false: a thread trapped.
bool emu_run(emu_kernel k, const uint64_t *args, const unsigned grid[3], const unsigned block[3]);
