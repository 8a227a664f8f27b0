// SPDX-License-Identifier: MIT
#include "ring.h"

#include "locked.h"

/*
 * A chunk takes the engine 5 us, some ten times as long as it takes to hand work to
 * threads. Four chunks stay in the CPU's cache until they are copied out. With chunks of
 * 64, 128 and 1024 KiB reads took longer, with those of 512 KiB as long (docs/dataplane.md).
 */
#define CHUNK ((size_t)256 << 10)
#define CHUNKS 4u

void gdr_ring_start(struct gdr_ring *ring)
{
	uint64_t gpu_at;

	ring->at = gdr_locked_new(CHUNKS * CHUNK, &gpu_at);
	if (ring->at)
		atomic_store_explicit(&ring->free, true, memory_order_release);
}

bool gdr_ring_take(struct gdr_ring *ring)
{
	return atomic_load_explicit(&ring->free, memory_order_relaxed) &&
	       atomic_exchange_explicit(&ring->free, false, memory_order_acquire);
}

static size_t bytes_of(const struct gdr_ring_read *r, size_t chunk)
{
	size_t left = r->n - chunk * CHUNK;

	return left < CHUNK ? left : CHUNK;
}

static uint8_t *place_of(const struct gdr_ring *ring, size_t chunk)
{
	return ring->at + chunk % CHUNKS * CHUNK;
}

static int read_chunks(struct gdr_ring *ring, struct gdr_words *words,
		       const struct gdr_ring_read *r)
{
	size_t count = (r->n + CHUNK - 1) / CHUNK, begun = 0;
	struct gdr_asked asked[CHUNKS];
	int rc;

	for (size_t i = 0; i < count; i++) {
		for (; begun < count && begun < i + CHUNKS; begun++) {
			rc = r->from(place_of(ring, begun), r->src + begun * CHUNK,
				     bytes_of(r, begun), words->stream);
			if (rc)
				return rc;
			asked[begun % CHUNKS] = gdr_words_ask(words);
		}
		rc = gdr_words_wait(words, asked[i % CHUNKS]);
		if (rc)
			return rc;
		r->out(r->arg, r->host + i * CHUNK, place_of(ring, i), bytes_of(r, i));
	}
	return 0;
}

/* After a failure the engine may still write to the ring, and to words that it was asked for. */
int gdr_ring_read(struct gdr_ring *ring, struct gdr_words *words, const struct gdr_ring_read *r)
{
	int rc = read_chunks(ring, words, r);

	if (!rc)
		atomic_store_explicit(&ring->free, true, memory_order_release);
	return rc;
}
