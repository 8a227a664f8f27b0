// SPDX-License-Identifier: MIT
#include "engine.h"

#include <stdatomic.h>
#include <stddef.h>

#include "../copy/clock.h"
#include "../host/guest.h"

#define POINTER_MEMORY_TYPE 2	/* a CUpointer_attribute */
#define BUFFER_ID 7
#define MEMORYTYPE_HOST 1
#define CAPTURE_MODE_RELAXED 2
#define CUDA_CONTEXT_IS_DESTROYED 709

/*
 * The engine fills a chunk in 5 us. To hand work to threads takes 0.5 us. Four chunks stay
 * in the CPU's cache until they are copied out. With chunks of 64, 128 and 1024 KiB reads
 * took longer; with chunks of 512 KiB as long (docs/dataplane.md).
 */
#define CHUNK ((size_t)256 << 10)
#define CHUNKS_OF_A_COPY 4u

#define CHUNKS 8u
#define SLOTS 64u		/* the first ones have a chunk */
#define LINE 64u
#define LOOKS 64		/* between two readings of the clock */
#define LOOK_NS 1000000u	/* the engine copies 50 MB in that time (H200) */

/* Only the stream writes it while a request is pending. */
struct word {
	_Alignas(LINE) _Atomic uint32_t value;
};

/*
 * owner is NULL: the slot is free, and the stream does nothing for it. Else only the
 * owner may use the slot.
 */
struct slot {
	_Alignas(LINE) _Atomic(const void *) owner;
	uint32_t asked;		/* the word's value when the stream has done the work */
};

struct gdr_engine {
	_Alignas(4096) uint8_t chunks[CHUNKS][CHUNK];
	struct word words[SLOTS];
	struct gdr_engine_parts parts;
	_Atomic uint64_t lost;	/* a bit for each slot */
	struct slot slots[SLOTS];
};

const size_t gdr_engine_bytes = sizeof(struct gdr_engine);
const size_t gdr_engine_word = offsetof(struct gdr_engine, words);

_Static_assert(SLOTS <= 64, "lost has a bit for each");

/* The owner of a lost slot, which is no thread. */
static const char is_lost;

typedef int cuda_work(const struct gdr_cuda_calls *c, void *arg);

static int run_in(const struct gdr_cuda_calls *c, void *ctx, cuda_work *work, void *arg)
{
	void *popped;
	int rc = c->push(ctx);

	if (rc)
		return rc;
	rc = work(c, arg);
	c->pop(&popped);
	return rc;
}

/*
 * Calls work with the driver's functions: C's one way to call the driver. Meanwhile the
 * engine's context is current; the thread's capture mode is relaxed, so no capture of a
 * graph ends, on this thread or on another; the thread gets no signals and is not
 * cancelled, so no handler leaves the driver by siglongjmp. Returns what work returns, or
 * the driver's error. work must not touch memory of the host's that may fault.
 */
static int run(struct gdr_engine *e, cuda_work *work, void *arg)
{
	const struct gdr_cuda_calls *c = &e->parts.unscoped;
	int mode = CAPTURE_MODE_RELAXED, rc = 0;
	struct gdr_guest guest;

	gdr_guest_enter(&guest);
	if (c->exchange_mode)
		rc = c->exchange_mode(&mode);
	if (!rc) {
		rc = run_in(c, e->parts.ctx, work, arg);
		if (c->exchange_mode)
			c->exchange_mode(&mode);
	}
	gdr_guest_leave(&guest);
	return rc;
}

/*
 * 0 where the driver knows no such memory. Asked for several attributes, it answers 0 for
 * an address that it does not know. Asked for one, it fails, which debuggers of CUDA report.
 */
static uint64_t attribute_of(const struct gdr_cuda_calls *c, int name, uint64_t addr)
{
	uint64_t answer = 0;	/* a memory's type has 4 bytes, the low ones */
	void *value = &answer;

	return c->attributes(1, &name, &value, addr) ? 0 : answer;
}

/* The extent that has addr, or NULL. */
static struct gdr_extent *extent_of(struct gdr_extents *x, uint64_t addr)
{
	size_t low = 0, high = x->count;

	while (low < high) {
		size_t i = (low + high) / 2;

		if (addr < x->at[i].start)
			high = i;
		else if (addr >= x->at[i].end)
			low = i + 1;
		else
			return &x->at[i];
	}
	return NULL;
}

/* Whether both bytes are still of one memory, the extent's. Without c: as far as is known. */
static bool is_same(const struct gdr_cuda_calls *c, struct gdr_extent *e, uint64_t first, uint64_t last)
{
	uint64_t id = atomic_load_explicit(&e->id, memory_order_relaxed);

	if (id && (!c || (attribute_of(c, BUFFER_ID, first) == id &&
			  attribute_of(c, BUFFER_ID, last) == id)))
		return true;
	atomic_store_explicit(&e->id, 0, memory_order_relaxed);
	return false;
}

bool gdr_extents_are_same(const struct gdr_cuda_calls *c, struct gdr_extents *x, uint64_t addr,
			  uint64_t n)
{
	uint64_t end = addr + n;

	while (addr < end) {
		struct gdr_extent *e = extent_of(x, addr);

		if (!e || !is_same(c, e, addr, (end < e->end ? end : e->end) - 1))
			return false;
		addr = e->end;
	}
	return true;
}

#define IS_LOCKED (-1)	/* no driver's answer */

static int find_locked(const struct gdr_cuda_calls *c, void *host)
{
	return attribute_of(c, POINTER_MEMORY_TYPE, (uintptr_t)host) == MEMORYTYPE_HOST ? IS_LOCKED : 0;
}

bool gdr_engine_is_locked(struct gdr_engine *e, void *host)
{
	return run(e, find_locked, host) == IS_LOCKED;
}

/* Whether nobody has reset the GPU. */
static bool is_alive(const struct gdr_cuda_calls *c, struct gdr_engine *e)
{
	return find_locked(c, e) == IS_LOCKED;
}

static int sync_stream(const struct gdr_cuda_calls *c, void *arg)
{
	struct gdr_engine *e = arg;

	return is_alive(c, e) ? c->stream_wait(e->parts.stream) : CUDA_CONTEXT_IS_DESTROYED;
}

static _Atomic uint32_t *word_of(struct gdr_engine *e, unsigned int slot)
{
	return &e->words[slot].value;
}

/* The stream is idle: what the slot asked for is done. */
static void mark_done(struct gdr_engine *e, unsigned int slot)
{
	atomic_store_explicit(word_of(e, slot), e->slots[slot].asked, memory_order_relaxed);
}

/* Queues a completion word after this thread's work, or waits for the work. */
static int request_word(const struct gdr_cuda_calls *c, struct gdr_engine *e, unsigned int slot)
{
	uint64_t at = e->parts.gpu_at + ((uintptr_t)word_of(e, slot) - (uintptr_t)e);
	int rc;

	e->slots[slot].asked = atomic_load_explicit(word_of(e, slot), memory_order_relaxed) + 1;
	if (e->parts.writes_words && !c->write(e->parts.stream, at, e->slots[slot].asked, 0))
		return 0;
	rc = c->stream_wait(e->parts.stream);
	if (!rc)
		mark_done(e, slot);
	return rc;
}

static bool take(struct slot *slot, const void *owner)
{
	const void *none = NULL;

	return !atomic_load_explicit(&slot->owner, memory_order_relaxed) &&
	       atomic_compare_exchange_strong(&slot->owner, &none, owner);
}

static void give_back(struct gdr_engine *e, unsigned int slot)
{
	atomic_store_explicit(&e->slots[slot].owner, NULL, memory_order_release);
}

static void lose(struct gdr_engine *e, unsigned int slot)
{
	atomic_store(&e->slots[slot].owner, &is_lost);
	atomic_fetch_or(&e->lost, 1ull << slot);
}

/*
 * Waits until the stream is idle, and frees the slots that were lost before. For others
 * the stream may have work since.
 */
static int settle(const struct gdr_cuda_calls *c, void *arg)
{
	struct gdr_engine *e = arg;
	uint64_t lost = atomic_exchange(&e->lost, 0);
	int rc = sync_stream(c, e);

	if (rc) {
		atomic_fetch_or(&e->lost, lost);
		return rc;
	}
	for (unsigned int i = 0; i < SLOTS; i++)
		if (lost & 1ull << i) {
			mark_done(e, i);
			give_back(e, i);
		}
	return 0;
}

/* A copy under way. Chunk i of it has slot i % count. */
struct transfer {
	struct gdr_engine *e;
	const struct gdr_engine_copy *copy;
	unsigned int slots[CHUNKS_OF_A_COPY], count;
	size_t chunk;		/* bytes of one; page-locked memory is one chunk */
	size_t chunks, begun, until;	/* until: what is to be begun */
};

static unsigned int slot_of(const struct transfer *t, size_t chunk)
{
	return t->slots[chunk % t->count];
}

static size_t bytes_of(const struct transfer *t, size_t chunk)
{
	size_t left = t->copy->n - chunk * t->chunk;

	return left < t->chunk ? left : t->chunk;
}

static void *place_of(const struct transfer *t, size_t chunk)
{
	return t->copy->locked ? t->copy->host : t->e->chunks[slot_of(t, chunk)];
}

static int begin_one(const struct gdr_cuda_calls *c, const struct transfer *t, size_t chunk)
{
	uint64_t at = t->copy->at + chunk * t->chunk;
	void *place = place_of(t, chunk), *stream = t->e->parts.stream;
	int rc;

	if (t->copy->to)
		rc = c->to(at, place, bytes_of(t, chunk), stream);
	else
		rc = c->from(place, at, bytes_of(t, chunk), stream);
	return rc ? rc : request_word(c, t->e, slot_of(t, chunk));
}

static int begin_all(const struct gdr_cuda_calls *c, void *arg)
{
	struct transfer *t = arg;
	int rc = 0;

	if (!is_alive(c, t->e))
		return CUDA_CONTEXT_IS_DESTROYED;
	if (!t->begun && !gdr_extents_are_same(c, t->copy->memory, t->copy->at, t->copy->n))
		return GDR_ENGINE_OTHER_MEMORY;
	for (; t->begun < t->until && !rc; t->begun++)
		rc = begin_one(c, t, t->begun);
	return rc;
}

/* Has the engine begin the chunks before until. */
static int begin(struct transfer *t, size_t until)
{
	t->until = until;
	return t->begun < until ? run(t->e, begin_all, t) : 0;
}

static bool is_seen(struct gdr_engine *e, unsigned int slot)
{
	uint64_t start = copy_now_ns();

	do {
		for (int looks = 0; looks < LOOKS; looks++) {
			if (atomic_load_explicit(word_of(e, slot), memory_order_acquire) ==
			    e->slots[slot].asked)
				return true;
			copy_pause();
		}
	} while (copy_now_ns() - start < LOOK_NS);
	return false;
}

/* Waits for the slot's completion word. */
static int wait_for(struct gdr_engine *e, unsigned int slot)
{
	int rc;

	if (is_seen(e, slot))
		return 0;
	rc = run(e, sync_stream, e);
	if (!rc)
		mark_done(e, slot);
	return rc;
}

static void take_slots(struct transfer *t)
{
	unsigned int first = t->copy->locked ? CHUNKS : 0, room = t->copy->locked ? SLOTS - CHUNKS : CHUNKS;
	unsigned int i = (unsigned int)((uintptr_t)t->copy->owner / LINE);

	for (unsigned int end = i + room; i != end && t->count < CHUNKS_OF_A_COPY; i++) {
		if (t->count == t->chunks)
			return;
		if (take(&t->e->slots[first + i % room], t->copy->owner))
			t->slots[t->count++] = first + i % room;
	}
}

static void stage(const struct transfer *t, size_t chunk)
{
	const struct gdr_engine_copy *copy = t->copy;

	if (!copy->locked)
		copy->stage(copy->arg, (uint8_t *)copy->host + chunk * CHUNK, place_of(t, chunk),
			    bytes_of(t, chunk));
}

/* Reads begin as many chunks as they have slots, in one stay with the driver. */
static int move(struct transfer *t)
{
	bool to = t->copy->to;
	int rc = 0;

	for (size_t i = 0; i < t->chunks + t->count && !rc; i++) {
		if (i >= t->count) {
			rc = wait_for(t->e, slot_of(t, i));
			if (!rc && !to)
				stage(t, i - t->count);
		}
		if (rc || i >= t->chunks)
			continue;
		if (to)
			stage(t, i);
		rc = begin(t, to || i ? i + 1 : t->count);
	}
	return rc;
}

static int transfer(struct gdr_engine *e, const struct gdr_engine_copy *copy)
{
	struct transfer t = { .e = e, .copy = copy, .chunk = copy->locked ? copy->n : CHUNK };
	int rc;

	t.chunks = (copy->n + t.chunk - 1) / t.chunk;
	take_slots(&t);
	if (!t.count)
		return GDR_ENGINE_BUSY;
	rc = move(&t);
	for (unsigned int i = 0; i < t.count; i++) {
		if (rc > 0)
			lose(e, t.slots[i]);
		else
			give_back(e, t.slots[i]);
	}
	return rc;
}

static int find_lost(struct gdr_engine *e)
{
	if (!atomic_load_explicit(&e->lost, memory_order_relaxed))
		return 0;
	return run(e, settle, e);
}

/* After an error nothing must land later, over what the host writes then. */
int gdr_engine_copy(struct gdr_engine *e, const struct gdr_engine_copy *copy)
{
	int rc = find_lost(e);

	if (!rc)
		rc = transfer(e, copy);
	if (rc > 0)
		find_lost(e);
	return rc;
}

/* What was begun lands before the host goes on. */
void gdr_engine_forget(struct gdr_engine *e, const void *owner)
{
	for (unsigned int i = 0; i < SLOTS; i++) {
		if (atomic_load_explicit(&e->slots[i].owner, memory_order_relaxed) != owner)
			continue;
		if (is_seen(e, i))
			give_back(e, i);
		else
			lose(e, i);
	}
}

void gdr_engine_begin(struct gdr_engine *e, const struct gdr_engine_parts *parts)
{
	e->parts = *parts;
}
