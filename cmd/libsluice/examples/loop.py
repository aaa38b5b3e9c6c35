"""loop.py: a toy engine around sluice, the same as loop.c.

The engine "computes" a token by hashing everything before it, and keeps real KV
in real blocks: each position of a request stores a digest of its prefix, written
to the slot that the plan's block table gives and read back before the next token
is made. A wrong block table would change the tokens, which are compared with
those of an engine that has no cache at all.

    PYTHONPATH=cmd/libsluice/python SLUICE_LIB=build/libsluice python3 loop.py
"""

from __future__ import annotations

import sys

import sluice

BLOCK_SIZE, BLOCKS, REQUESTS, OUTPUT = 16, 200, 24, 20
MASK = 2**64 - 1

# ------------------------------------------------------------------ the toy model


def mix(state: int, token: int) -> int:
    state ^= token + 0x9E3779B97F4A7C15 + (state << 6) + (state >> 2) & MASK
    state = state * 0xBF58476D1CE4E5B9 & MASK
    return state ^ state >> 31


def sample(state: int) -> int:
    return state % 30000


class Executor:
    """Block tables by slot, and the KV that they point to."""

    def __init__(self) -> None:
        self.kv = [[0] * BLOCK_SIZE for _ in range(BLOCKS)]
        self.tables: dict[int, list[int]] = {}

    def run(self, plan: sluice.Plan) -> list[int]:
        """The tokens of all rows that yield one."""
        for row, request in enumerate(plan.requests):
            at, blocks = plan.table(row)
            table = self.tables.setdefault(sluice.slot(int(request)), [])
            table[at:] = [int(b) for b in blocks]
        tokens = [self.compute(plan, row) for row in range(plan.rows)]
        return [t for t, yields in zip(tokens, plan.samples) if yields]

    def compute(self, plan: sluice.Plan, row: int) -> int:
        table = self.tables[sluice.slot(int(plan.requests[row]))]
        position = int(plan.computed[row])
        state = 0
        if position > 0:
            before = position - 1
            state = self.kv[table[before // BLOCK_SIZE]][before % BLOCK_SIZE]
        for token in plan.input(row):
            state = mix(state, int(token))
            self.kv[table[position // BLOCK_SIZE]][position % BLOCK_SIZE] = state
            position += 1
        return sample(state)


# -------------------------------------------------------------------- the requests


def prompt(number: int) -> list[int]:
    """Prompts in three families that share long beginnings."""
    return [(number % 3) * 1000 + i if i < 48 else number * 100 + i for i in range(60 + number * 2)]


def without_cache(tokens: list[int]) -> list[int]:
    """The same tokens without a scheduler, a cache or blocks."""
    state, out = 0, []
    for token in tokens:
        state = mix(state, token)
    for _ in range(OUTPUT):
        out.append(sample(state))
        state = mix(state, out[-1])
    return out


# ---------------------------------------------------------------------- the engine


def main() -> int:
    config = {
        "Cache": {"Blocks": BLOCKS, "BlockSize": BLOCK_SIZE},
        "Scheduler": {"MaxModelLen": 512, "MaxNumSeqs": 8, "MaxBatchedTokens": 128},
        "Graphs": {"Mode": "FULL_AND_PIECEWISE"},
    }
    executor = Executor()
    answers: dict[int, list[int]] = {}
    numbers: dict[int, int] = {}
    full = now = added = 0
    with sluice.Scheduler(config) as s:
        while True:
            if added < REQUESTS:  # one new request a step
                request = s.add(f"r{added}", prompt(added), max_tokens=OUTPUT)
                numbers[request], answers[added] = added, []
                added += 1
            if not s.has_work():
                break
            now += 1_000_000
            plan = s.plan(now)
            tokens = executor.run(plan)
            full += plan.graph.mode == sluice.Mode.FULL
            for out in s.apply(plan, tokens):
                answers[numbers[out.request]] += out.tokens
        stats = s.stats()
    equal = sum(answers[n] == without_cache(prompt(n)) for n in range(REQUESTS))
    print(f"{equal} of {REQUESTS} answers equal those without a cache")
    print(
        f"{stats['steps']} steps, {full} of them by a FULL graph; {stats['prompt_local']} of {stats['prompt_tokens']} "
        f"prompt tokens from the cache; {stats['preemptions']} preemptions"
    )
    return 0 if equal == REQUESTS and stats["prompt_local"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
