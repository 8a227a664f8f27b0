// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: copies and sets. Test code.
 *
 * A small cuMemcpyHtoD returns once its bytes are read from the host, as in the real
 * driver. The bytes land later. Here they land at the next call that synchronises, the
 * latest time that the real driver allows. With SYNC_MEMOPS they land before the call
 * returns.
 *
 * cuMemcpyDtoHAsync into page-locked memory lands as late. cuStreamWriteValue32 has all that
 * came before it land, and then its value, as if the GPU were that fast. With
 * CUDA_SIM_LAZY_WRITES=1 its value lands late, too.
 */
#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>

#define STAGED (64u << 10)

/*
 * What has not landed: a copy to dst, whose bytes were read; a copy of the device's bytes
 * at src to host; or a value for the word at host.
 */
struct staged {
	struct staged *next;
	enum { TO_DEVICE, TO_HOST, TO_WORD } kind;
	uint64_t dst, src;
	void *host;
	uint32_t value;
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

static void land(struct staged *s)
{
	switch (s->kind) {
	case TO_DEVICE:
		each_piece(s->dst, s->size, put_piece, s->bytes);
		break;
	case TO_HOST:
		each_piece(s->src, s->size, get_piece, s->host);
		break;
	case TO_WORD:
		__atomic_store_n((uint32_t *)s->host, s->value, __ATOMIC_RELEASE);
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

static int stage(uint64_t dst, const void *src, size_t size)
{
	const struct staged copy = { .kind = TO_DEVICE, .dst = dst, .size = size };
	struct staged *s = append(&copy, size);

	if (!s)
		return CU_OUT_OF_MEMORY;
	memcpy(s->bytes, src, size);
	return CU_OK;
}

static bool any_sync_memops(uint64_t addr, uint64_t size)
{
	uint64_t done = 0;

	while (done < size) {
		const struct buffer *b = buffer_find(addr + done);

		if (b->sync_memops)
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

static int to_device(struct ctx *ctx, uint64_t dst, const void *src, size_t size)
{
	int result;

	if (!size)
		return CU_OK;
	if (!host_ok(src, size))
		return CU_INVALID_VALUE;
	result = check(dst, size, ctx->device, true);
	if (result)
		return result;
	if (size <= STAGED && !(ctx->flags & CTX_SYNC_MEMOPS) && !any_sync_memops(dst, size))
		return stage(dst, src, size);
	flush();
	each_piece(dst, size, put_piece, (void *)(uintptr_t)src);
	return CU_OK;
}

static int from_device(struct ctx *ctx, void *dst, uint64_t src, size_t size)
{
	int result;

	if (!size)
		return CU_OK;
	if (!host_ok(dst, size))
		return CU_INVALID_VALUE;
	result = check(src, size, ctx->device, false);
	if (result)
		return result;
	flush();
	each_piece(src, size, get_piece, dst);
	return CU_OK;
}

SIM_API int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t size)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = to_device(ctx, dst, src, size);
	leave();
	return result;
}

SIM_API int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t size)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = from_device(ctx, dst, src, size);
	leave();
	return result;
}

/* SYNC_MEMOPS does not change the calls that are asynchronous by name. */
static int to_device_async(struct ctx *ctx, uint64_t dst, const void *src, size_t size)
{
	int result;

	if (!size)
		return CU_OK;
	if (!host_ok(src, size))
		return CU_INVALID_VALUE;
	result = check(dst, size, ctx->device, true);
	return result ? result : stage(dst, src, size);
}

SIM_API int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t size, struct stream *stream)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = stream_takes(stream, &now);
	if (!result && now)
		result = to_device_async(ctx, dst, src, size);
	leave();
	return result;
}

static int from_device_async(struct ctx *ctx, void *dst, uint64_t src, size_t size)
{
	const struct staged copy = { .kind = TO_HOST, .host = dst, .src = src, .size = size };
	int result;

	if (!size || !host_locked((uintptr_t)dst, size))
		return from_device(ctx, dst, src, size);
	result = check(src, size, ctx->device, false);
	if (result)
		return result;
	return append(&copy, 0) ? CU_OK : CU_OUT_OF_MEMORY;
}

SIM_API int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t size, struct stream *stream)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = stream_takes(stream, &now);
	if (!result && now)
		result = from_device_async(ctx, dst, src, size);
	leave();
	return result;
}

static int device_to_device(struct ctx *ctx, uint64_t dst, uint64_t src, size_t size)
{
	int result;
	uint8_t *p;

	if (!size)
		return CU_OK;
	result = check(src, size, ctx->device, false);
	if (!result)
		result = check(dst, size, ctx->device, true);
	if (result)
		return result;
	p = malloc(size);
	if (!p)
		return CU_OUT_OF_MEMORY;
	flush();
	each_piece(src, size, get_piece, p);
	each_piece(dst, size, put_piece, p);
	free(p);
	return CU_OK;
}

SIM_API int cuMemcpyDtoD_v2(uint64_t dst, uint64_t src, size_t size)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = device_to_device(ctx, dst, src, size);
	leave();
	return result;
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

SIM_API int cuMemsetD8_v2(uint64_t addr, unsigned char value, size_t n)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = set(ctx, addr, n, set8_piece, &value);
	leave();
	return result;
}

SIM_API int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t size, struct stream *stream)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = stream_takes(stream, &now);
	if (!result && now)
		result = device_to_device(ctx, dst, src, size);
	leave();
	return result;
}

SIM_API int cuMemsetD8Async(uint64_t addr, unsigned char value, size_t n, struct stream *stream)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = stream_takes(stream, &now);
	if (!result && now)
		result = set(ctx, addr, n, set8_piece, &value);
	leave();
	return result;
}

SIM_API int cuMemsetD32_v2(uint64_t addr, unsigned int value, size_t n)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	if (addr % sizeof(uint32_t) || n > SIZE_MAX / sizeof(uint32_t))
		result = CU_INVALID_VALUE;
	else
		result = set(ctx, addr, n * sizeof(uint32_t), set32_piece, &value);
	leave();
	return result;
}

/* Page-locked words alone; those of device memory are not modelled. */
static int write_value(uint64_t addr, uint32_t value, unsigned int flags)
{
	const struct staged word = { .kind = TO_WORD, .host = (void *)(uintptr_t)addr, .value = value };

	if (addr % sizeof(value) || flags > 1 || !host_locked(addr, sizeof(value)))
		return CU_INVALID_VALUE;
	if (!append(&word, 0))
		return CU_OUT_OF_MEMORY;
	if (!device_flag("CUDA_SIM_LAZY_WRITES", 0, false))
		flush();
	return CU_OK;
}

SIM_API int cuStreamWriteValue32_v2(struct stream *stream, uint64_t addr, uint32_t value,
				    unsigned int flags)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = stream_takes(stream, &now);
	if (!result && now)
		result = write_value(addr, value, flags);
	leave();
	return result;
}
