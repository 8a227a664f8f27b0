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

/*
 * What has not landed: a copy to dst, of host where that is set, else of bytes; or a copy of
 * the device's bytes at src to dst, or to host.
 */
struct staged {
	struct staged *next;
	enum { TO_DEVICE, WITHIN, TO_HOST } kind;
	struct ctx *ctx;
	uint64_t dst, src;
	void *host;
	size_t size;
	uint8_t bytes[];
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

/* Whether the memory has gone. */
static bool gone(const struct staged *s)
{
	int device = s->ctx->device;

	return ((s->kind == TO_DEVICE || s->kind == WITHIN) && check(s->dst, s->size, device, true)) ||
	       ((s->kind == TO_HOST || s->kind == WITHIN) && check(s->src, s->size, device, false));
}

/* The source is read before the destination is written, for they may overlap. */
static void land_within(const struct staged *s)
{
	uint8_t *p = malloc(s->size);

	if (!p)
		abort();
	each_piece(s->src, s->size, get_piece, p);
	each_piece(s->dst, s->size, put_piece, p);
	free(p);
}

/* Nothing lands in a context that is lost. */
static void land(struct staged *s)
{
	s->ctx->lost |= gone(s);
	if (s->ctx->lost)
		return;
	switch (s->kind) {
	case TO_DEVICE:
		each_piece(s->dst, s->size, put_piece, s->host ?: s->bytes);
		break;
	case WITHIN:
		land_within(s);
		break;
	case TO_HOST:
		each_piece(s->src, s->size, get_piece, s->host);
		break;
	}
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

/* Appends a copy of what, with room for bytes. */
static struct staged *append(const struct staged *what, size_t bytes)
{
	struct staged *s = malloc(sizeof(*s) + bytes);

	if (!s)
		return NULL;
	*s = *what;
	*last = s;
	last = &s->next;
	return s;
}

static int stage(struct ctx *ctx, uint64_t dst, void *src, size_t size, bool by_dma)
{
	const struct staged copy = { .kind = TO_DEVICE, .ctx = ctx, .dst = dst, .host = by_dma ? src : NULL, .size = size };
	struct staged *s = append(&copy, by_dma ? 0 : size);

	if (!s)
		return CU_OUT_OF_MEMORY;
	if (!by_dma)
		memcpy(s->bytes, src, size);
	return CU_OK;
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

static void set8_piece(uint8_t *mem, uint64_t done, uint64_t size, void *arg)
{
	(void)done;
	memset(mem, *(const uint8_t *)arg, size);
}

/* Pieces of a set start at multiples of 4, as addresses and buffers do. */
static void set32_piece(uint8_t *mem, uint64_t done, uint64_t size, void *arg)
{
	uint64_t i;

	(void)done;
	for (i = 0; i < size; i += sizeof(uint32_t))
		memcpy(mem + i, arg, sizeof(uint32_t));
}

static int set(struct ctx *ctx, uint64_t addr, uint64_t size, piece_fn *fn, void *value)
{
	int result;

	if (!size)
		return CU_OK;
	result = check(addr, size, ctx->device, true);
	if (result)
		return result;
	flush();
	each_piece(addr, size, fn, value);
	return CU_OK;
}

/* What one call asks for. Without STREAMED it is done at once; else when the stream takes it. */
struct request {
	int (*work)(struct ctx *ctx, const struct request *r);
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

static void *host(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

/* SYNC_MEMOPS does not change the calls that are asynchronous by name. */
static bool lands_late(const struct ctx *ctx, const struct request *r)
{
	return r->streamed || (!(ctx->flags & CTX_SYNC_MEMOPS) && !any_sync_memops(r->dst, r->size));
}

static int copy_to(struct ctx *ctx, const struct request *r)
{
	int result;

	if (!r->size)
		return CU_OK;
	if (!host_ok(host(r->src), r->size))
		return CU_INVALID_VALUE;
	result = check(r->dst, r->size, ctx->device, true);
	if (result)
		return result;
	if (lands_late(ctx, r) && (r->streamed || r->size <= STAGED))
		return stage(ctx, r->dst, host(r->src), r->size, r->streamed && host_locked(r->src, r->size));
	flush();
	each_piece(r->dst, r->size, put_piece, host(r->src));
	return CU_OK;
}

static int copy_from(struct ctx *ctx, const struct request *r)
{
	const struct staged copy = { .kind = TO_HOST, .ctx = ctx, .host = host(r->dst), .src = r->src, .size = r->size };
	int result;

	if (!r->size)
		return CU_OK;
	if (!host_ok(host(r->dst), r->size))
		return CU_INVALID_VALUE;
	result = check(r->src, r->size, ctx->device, false);
	if (result)
		return result;
	if (r->streamed && host_locked(r->dst, r->size))
		return append(&copy, 0) ? CU_OK : CU_OUT_OF_MEMORY;
	flush();
	each_piece(r->src, r->size, get_piece, host(r->dst));
	return CU_OK;
}

static int copy_within(struct ctx *ctx, const struct request *r)
{
	const struct staged copy = { .kind = WITHIN, .ctx = ctx, .dst = r->dst, .src = r->src, .size = r->size };
	int result;

	if (!r->size)
		return CU_OK;
	result = check(r->src, r->size, ctx->device, false) ?: check(r->dst, r->size, ctx->device, true);
	if (result)
		return result;
	if (!append(&copy, 0))
		return CU_OUT_OF_MEMORY;
	if (!lands_late(ctx, r) || (!r->streamed && any_sync_memops(r->src, r->size)))
		flush();
	return CU_OK;
}

/* The addresses tell which sides are the device's. */
static int copy_any(struct ctx *ctx, const struct request *r)
{
	bool to = va_is_device(r->dst, r->size), from = va_is_device(r->src, r->size);

	if (!r->size)
		return CU_OK;
	if (!r->dst || !r->src)
		return CU_INVALID_VALUE;
	if (to || from)
		return to && from ? copy_within(ctx, r) : to ? copy_to(ctx, r) : copy_from(ctx, r);
	flush();
	memmove(host(r->dst), host(r->src), r->size);
	return CU_OK;
}

static int set_bytes(struct ctx *ctx, const struct request *r)
{
	uint8_t value = (uint8_t)r->value;

	return set(ctx, r->dst, r->size, set8_piece, &value);
}

static int set_words(struct ctx *ctx, const struct request *r)
{
	uint32_t value = r->value;

	if (r->dst % sizeof(value) || r->size > SIZE_MAX / sizeof(value))
		return CU_INVALID_VALUE;
	return set(ctx, r->dst, r->size * sizeof(value), set32_piece, &value);
}

/* Each request by its members that are not 0. */
#define ASK(name, params, ...)					\
	SIM_API int name params					\
	{							\
		return ask(__func__, &(struct request){ __VA_ARGS__ }, CALLER); \
	}

ASK(cuMemcpyHtoD_v2, (uint64_t dst, const void *src, size_t size),
    .work = copy_to, .dst = dst, .src = (uintptr_t)src, .size = size)
ASK(cuMemcpyDtoH_v2, (void *dst, uint64_t src, size_t size),
    .work = copy_from, .dst = (uintptr_t)dst, .src = src, .size = size)
ASK(cuMemcpyDtoD_v2, (uint64_t dst, uint64_t src, size_t size),
    .work = copy_within, .dst = dst, .src = src, .size = size)
ASK(cuMemcpy, (uint64_t dst, uint64_t src, size_t size),
    .work = copy_any, .dst = dst, .src = src, .size = size)
ASK(cuMemcpyHtoDAsync_v2, (uint64_t dst, const void *src, size_t size, struct stream *s),
    .work = copy_to, .streamed = true, .stream = s, .dst = dst, .src = (uintptr_t)src, .size = size)
ASK(cuMemcpyDtoHAsync_v2, (void *dst, uint64_t src, size_t size, struct stream *s),
    .work = copy_from, .streamed = true, .stream = s, .dst = (uintptr_t)dst, .src = src, .size = size)
ASK(cuMemcpyDtoDAsync_v2, (uint64_t dst, uint64_t src, size_t size, struct stream *s),
    .work = copy_within, .streamed = true, .stream = s, .dst = dst, .src = src, .size = size)
ASK(cuMemcpyAsync, (uint64_t dst, uint64_t src, size_t size, struct stream *s),
    .work = copy_any, .streamed = true, .stream = s, .dst = dst, .src = src, .size = size)
ASK(cuMemsetD8_v2, (uint64_t addr, unsigned char value, size_t n),
    .work = set_bytes, .dst = addr, .value = value, .size = n)
ASK(cuMemsetD8Async, (uint64_t addr, unsigned char value, size_t n, struct stream *s),
    .work = set_bytes, .streamed = true, .stream = s, .dst = addr, .value = value, .size = n)
ASK(cuMemsetD32_v2, (uint64_t addr, unsigned int value, size_t n),
    .work = set_words, .dst = addr, .value = value, .size = n)
