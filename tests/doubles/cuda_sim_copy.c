// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: copies and sets. Test code.
 *
 * A small cuMemcpyHtoD returns once its bytes are read from the host, as in the real
 * driver. The bytes land later. Here they land at the next call that synchronises, the
 * latest time that the real driver allows. With SYNC_MEMOPS they land before the call
 * returns.
 *
 * cuMemcpyDtoD of any size lands as late, unless one of the two sides has SYNC_MEMOPS: the
 * driver waits for none (the guide, 4.2; read stale on an H100 with 64 bytes).
 *
 * cuMemcpyDtoHAsync into page-locked memory lands as late. cuMemcpyHtoDAsync of such memory is
 * read as late.
 *
 * Where cuMemUnmap has taken the memory from under a copy, for it waits for none, the GPU faults
 * and the context is lost (719 on an H100).
 */
#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>

#define STAGED (64u << 10)

/* A copy that has not landed. */
struct staged {
	struct staged *next;
	struct ctx *ctx;
	bool to, from;		/* which sides are the device's */
	uint64_t dst, src;
	size_t size;
	uint8_t bytes[];	/* if src is 0: they are read already */
};

static struct staged *first, **last = &first;

/* What is done with one contiguous piece of device memory. */
typedef void piece_fn(uint8_t *mem, uint64_t done, uint64_t size, void *arg);

/*
 * CU_OK if all of the range is memory that the device may read, or write. Two buffers of
 * cuMemAlloc are never one range, even side by side. Two mappings side by side are.
 */
static int check(uint64_t addr, uint64_t size, int device, bool write)
{
	uint64_t done = 0;

	if (size > UINT64_MAX - addr)
		return CU_INVALID_VALUE;
	while (done < size) {
		const struct buffer *b = buffer_find(addr + done);
		uint64_t left;

		if (!b || (done && !b->handle))
			return CU_INVALID_VALUE;
		if (!((write ? b->writers : b->readers) & 1u << device))
			return CU_INVALID_VALUE;
		left = b->addr + b->size - (addr + done);
		done += left < size - done ? left : size - done;
		if (!b->handle && done < size)
			return CU_INVALID_VALUE;
	}
	return CU_OK;
}

static void each_piece(uint64_t addr, uint64_t size, piece_fn *fn, void *arg)
{
	uint64_t done = 0;

	while (done < size) {
		const struct buffer *b = buffer_find(addr + done);
		uint64_t in = addr + done - b->addr, n = b->size - in;

		if (n > size - done)
			n = size - done;
		fn(b->mem->view + b->offset + in, done, n, arg);
		done += n;
	}
}

static void put_piece(uint8_t *mem, uint64_t done, uint64_t size, void *arg)
{
	memcpy(mem, (const uint8_t *)arg + done, size);
}

static void get_piece(uint8_t *mem, uint64_t done, uint64_t size, void *arg)
{
	memcpy((uint8_t *)arg + done, mem, size);
}

static void *host(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

/* Nothing lands in a context that is lost. The source is read before the destination is written, for they may overlap. */
static void land(struct staged *s)
{
	uint8_t *p = s->src ? host(s->src) : s->bytes;
	int device = s->ctx->device;

	s->ctx->lost |= (s->to && check(s->dst, s->size, device, true)) || (s->from && check(s->src, s->size, device, false));
	if (s->ctx->lost)
		return;
	if (s->from) {
		p = s->to ? malloc(s->size) : host(s->dst);
		if (!p)
			abort();
		each_piece(s->src, s->size, get_piece, p);
	}
	if (s->to)
		each_piece(s->dst, s->size, put_piece, p);
	if (s->to && s->from)
		free(p);
}

void flush(void)
{
	while (first) {
		struct staged *s = first;

		land(s);
		first = s->next;
		free(s);
	}
	last = &first;
}

/* Memory of a pool takes the attribute, and copies do not follow it (580.159.04). */
static bool any_sync_memops(uint64_t addr, uint64_t size)
{
	uint64_t done = 0;

	while (done < size) {
		const struct buffer *b = buffer_find(addr + done);

		if (b->sync_memops && !(b->chunk && b->chunk->pool))
			return true;
		done += b->addr + b->size - (addr + done);
	}
	return false;
}

/*
 * A host pointer that a copy may use. A device address is refused, and a range of which a
 * part is page-locked.
 */
static bool host_ok(const void *p, size_t size)
{
	return p && !va_is_device((uintptr_t)p, size) && !host_mixed((uintptr_t)p, size);
}

/* Pieces of words start at multiples of 4, as addresses and buffers do; those of bytes have one byte four times. */
static void set_piece(uint8_t *mem, uint64_t done, uint64_t size, void *word)
{
	uint64_t i = 0;

	(void)done;
	for (; i + sizeof(uint32_t) <= size; i += sizeof(uint32_t))
		memcpy(mem + i, word, sizeof(uint32_t));
	memcpy(mem + i, word, size - i);
}

static int set(struct ctx *ctx, uint64_t addr, uint64_t size, uint32_t word)
{
	int result = check(addr, size, ctx->device, true);

	if (result || !size)
		return result;
	flush();
	each_piece(addr, size, set_piece, &word);
	return CU_OK;
}

/* What one call asks for. Without STREAMED it is done at once; else when the stream takes it. */
struct request {
	int (*work)(struct ctx *ctx, const struct request *r);
	bool to, from;		/* of a copy: which sides are the device's */
	bool streamed;
	struct stream *stream;
	uint64_t dst, src;	/* of the device, or the host's */
	size_t size;		/* in bytes; of a set of words their number */
	uint32_t value;
};

static int set_words(struct ctx *ctx, const struct request *r);

/* The one frame of all calls here. A captured stream drops what it is given. */
static int ask(const char *name, const struct request *r, const void *caller)
{
	uint64_t size = r->work == set_words ? r->size * sizeof(r->value) : r->size;
	bool now = true;
	int result;

	strict_copy(name, r->dst, size, caller);
	strict_copy(name, r->src, size, caller);
	result = enter_ctx(name);
	if (result)
		return result;
	if (r->streamed)
		result = stream_takes(r->stream, &now);
	if (!result && now)
		result = r->work(current_ctx(), r);
	return leave(result);
}

/* SYNC_MEMOPS does not change the calls that are asynchronous by name. */
static bool lands_late(const struct ctx *ctx, const struct request *r)
{
	if (!r->to)
		return r->streamed && host_locked(r->dst, r->size);
	if (r->streamed)
		return true;
	if (ctx->flags & CTX_SYNC_MEMOPS || any_sync_memops(r->dst, r->size))
		return false;
	return r->from ? !any_sync_memops(r->src, r->size) : r->size <= STAGED;
}

static int copy(struct ctx *ctx, const struct request *r)
{
	bool late, is_read;
	struct staged *s;
	int result;

	if (!r->size)
		return CU_OK;
	if ((!r->to && !host_ok(host(r->dst), r->size)) || (!r->from && !host_ok(host(r->src), r->size)))
		return CU_INVALID_VALUE;
	result = (r->from ? check(r->src, r->size, ctx->device, false) : CU_OK) ?:
		 (r->to ? check(r->dst, r->size, ctx->device, true) : CU_OK);
	if (result)
		return result;
	late = lands_late(ctx, r);
	is_read = late && !r->from && !(r->streamed && host_locked(r->src, r->size));
	s = malloc(sizeof(*s) + (is_read ? r->size : 0));
	if (!s)
		return CU_OUT_OF_MEMORY;
	*s = (struct staged){ .ctx = ctx, .to = r->to, .from = r->from, .dst = r->dst, .src = is_read ? 0 : r->src, .size = r->size };
	if (is_read)
		memcpy(s->bytes, host(r->src), r->size);
	*last = s;
	last = &s->next;
	if (!late)
		flush();
	return CU_OK;
}

/* The addresses tell which sides are the device's. */
static int copy_any(struct ctx *ctx, const struct request *r)
{
	struct request q = *r;

	q.to = va_is_device(r->dst, r->size);
	q.from = va_is_device(r->src, r->size);
	if (q.to || q.from)
		return copy(ctx, &q);
	if (r->size && (!r->dst || !r->src))
		return CU_INVALID_VALUE;
	flush();
	memmove(host(r->dst), host(r->src), r->size);
	return CU_OK;
}

static int set_bytes(struct ctx *ctx, const struct request *r)
{
	return set(ctx, r->dst, r->size, r->value * 0x01010101u);
}

static int set_words(struct ctx *ctx, const struct request *r)
{
	if (r->dst % sizeof(r->value) || r->size > SIZE_MAX / sizeof(r->value))
		return CU_INVALID_VALUE;
	return set(ctx, r->dst, r->size * sizeof(r->value), r->value);
}

/* Each request by its members that are not 0. */
#define ASK(name, params, ...)					\
	SIM_API int name params					\
	{							\
		return ask(__func__, &(struct request){ __VA_ARGS__ }, CALLER); \
	}

ASK(cuMemcpyHtoD_v2, (uint64_t dst, const void *src, size_t size),
    .work = copy, .to = true, .dst = dst, .src = (uintptr_t)src, .size = size)
ASK(cuMemcpyDtoH_v2, (void *dst, uint64_t src, size_t size),
    .work = copy, .from = true, .dst = (uintptr_t)dst, .src = src, .size = size)
ASK(cuMemcpyDtoD_v2, (uint64_t dst, uint64_t src, size_t size),
    .work = copy, .to = true, .from = true, .dst = dst, .src = src, .size = size)
ASK(cuMemcpy, (uint64_t dst, uint64_t src, size_t size),
    .work = copy_any, .dst = dst, .src = src, .size = size)
ASK(cuMemcpyHtoDAsync_v2, (uint64_t dst, const void *src, size_t size, struct stream *s),
    .work = copy, .to = true, .streamed = true, .stream = s, .dst = dst, .src = (uintptr_t)src, .size = size)
ASK(cuMemcpyDtoHAsync_v2, (void *dst, uint64_t src, size_t size, struct stream *s),
    .work = copy, .from = true, .streamed = true, .stream = s, .dst = (uintptr_t)dst, .src = src, .size = size)
ASK(cuMemcpyDtoDAsync_v2, (uint64_t dst, uint64_t src, size_t size, struct stream *s),
    .work = copy, .to = true, .from = true, .streamed = true, .stream = s, .dst = dst, .src = src, .size = size)
ASK(cuMemcpyAsync, (uint64_t dst, uint64_t src, size_t size, struct stream *s),
    .work = copy_any, .streamed = true, .stream = s, .dst = dst, .src = src, .size = size)
ASK(cuMemsetD8_v2, (uint64_t addr, unsigned char value, size_t n),
    .work = set_bytes, .dst = addr, .value = value, .size = n)
ASK(cuMemsetD8Async, (uint64_t addr, unsigned char value, size_t n, struct stream *s),
    .work = set_bytes, .streamed = true, .stream = s, .dst = addr, .value = value, .size = n)
ASK(cuMemsetD32_v2, (uint64_t addr, unsigned int value, size_t n),
    .work = set_words, .dst = addr, .value = value, .size = n)
