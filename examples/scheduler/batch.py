# SPDX-License-Identifier: MIT
"""What a scheduler decides before each step, and the tokens that must come back of it. NumPy alone."""
from types import SimpleNamespace

import numpy as np

REQUESTS = 256
BLOCK = 16  # tokens in a block of the cache
COLUMNS = 2048  # of the block table: a request has up to 32,768 tokens
PROMPT = 1024  # blocks of the longest prompt
MOST = REQUESTS + PROMPT  # new block ids of a step
VOCABULARY = 1 << 16
ENDS = 0.17  # requests that end in a step, on average

#: The small arrays of a step: name, type, elements. A pack has them one after another, in words of 4 bytes.
FIELDS = (("slots", "int64", REQUESTS), ("positions", "int64", REQUESTS), ("lengths", "int32", REQUESTS),
          ("tokens", "int32", REQUESTS), ("starts", "int32", REQUESTS + 1))
WORDS = sum(count * (int(kind[3:]) // 32) for _, kind, count in FIELDS)


def fields(block, module):
    """The small arrays in a block of words, of NumPy or of PyTorch."""
    made, at = SimpleNamespace(), 0
    for name, kind, count in FIELDS:
        end = at + count * (int(kind[3:]) // 32)
        setattr(made, name, block[at:end].view(getattr(module, kind)))
        at = end
    return made


class Batch:
    """Requests in the rows of a block table. A step adds a token to each; every 16th begins a block.

    A row whose request has ended rests for one step: the step that runs meanwhile may still read it.
    """

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.table = np.zeros((REQUESTS, COLUMNS), np.int32)
        self.block = np.zeros(WORDS, np.int32)  # the small arrays lie in it
        given = fields(self.block, np)
        self.slots, self.positions, self.lengths, self.tokens, self.starts = self.arrays = list(vars(given).values())
        self.starts[:] = range(REQUESTS + 1)
        self.order = np.arange(REQUESTS)  # the row of each request
        self.last = np.zeros(REQUESTS, np.int64)
        self.sums = np.zeros(REQUESTS, np.int64)  # of each row's ids, by their columns
        self.resting = None
        for row in range(REQUESTS):
            self._append(*self._prompt(row))

    def _prompt(self, row):
        """A new request in this row: one run of ids, from column 0 on."""
        self.lengths[row] = self.random.integers(1, PROMPT * BLOCK)
        count = (self.lengths[row] + BLOCK - 1) // BLOCK
        return np.array([row]), np.array([0]), np.array([count]), self._ids(count)

    def _ids(self, count):
        return self.random.integers(1, 1 << 20, count, dtype=np.int32)

    def _append(self, rows, columns, counts, ids):
        """New ids, in runs: counts[k] of them from columns[k] of rows[k] on. Without counts each run is one id."""
        self.rows, self.columns, self.counts, self.ids = rows, columns, counts, ids
        places = self.places()
        self.table.reshape(-1)[places] = ids
        np.add.at(self.sums, places // COLUMNS, ids * (places % COLUMNS + 1))

    def places(self):
        """Where each new id goes, in elements of the table."""
        first = self.rows * COLUMNS + self.columns
        if self.counts is None:
            return first
        before = np.cumsum(self.counts) - self.counts
        return np.repeat(first - before, self.counts) + np.arange(len(self.ids))

    def step(self):
        """Makes the arrays of the next step, in place. Returns the tokens that its kernels must make of them."""
        lengths, begins, self.resting = self.lengths, self.resting, None
        np.add(lengths, 1, out=lengths, where=lengths > 0)
        self.tokens.fill(-1)  # the GPU has the last one
        if self.random.random() < ENDS:
            self.resting = self.random.integers(REQUESTS)
            lengths[self.resting] = self.sums[self.resting] = 0
        rows = np.flatnonzero(lengths % BLOCK == 1)
        new = rows, lengths[rows] // BLOCK, None, self._ids(len(rows))
        if begins is not None and begins != self.resting:
            new = new[0], new[1], np.ones(len(rows), int), new[3]
            new = [np.concatenate(both) for both in zip(new, self._prompt(begins))]
            self.tokens[begins] = self.random.integers(VOCABULARY)
        self._append(*new)
        np.maximum(lengths - 1, 0, out=self.positions, casting="unsafe")
        self.slots[:] = self.table[self.order, self.positions // BLOCK]
        self.slots *= BLOCK
        self.slots += self.positions % BLOCK
        before = np.where(self.tokens >= 0, self.tokens, self.last)
        self.last = mix(self.sums, self, before) % VOCABULARY
        return self.last


def mix(sums, given, before):
    """What a step makes of all that was sent, on the CPU and on the GPU."""
    return (sums + 3 * given.slots + 5 * given.lengths + 7 * given.positions + 11 * before + 13 * given.starts[:-1])
