// SPDX-License-Identifier: MIT
/*
 * dma.c - long copies by the GPU's copy engine, through the CUDA driver.
 *
 * Each GPU has one stream, which waits for no work of the host's and holds none
 * up, in the GPU's primary context. The host has loaded CUDA: its memory is
 * mapped.
 *
 * When the host resets the GPU, the context's streams and page-locked memory end. The
 * driver must not get such a stream. So each copy asks first whether that memory is still
 * page-locked. A later gdr_map makes a stream and words anew. What the reset has ended is
 * left as it is, for a copy may still look at it.
 */
#define _GNU_SOURCE
#include "dma.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "copy/slot.h"
#include "driver.h"
#include "log.h"
#include "words.h"

#define GPUS_MAX 64
#define CU_POINTER_ATTRIBUTE_MEMORY_TYPE 2
#define CU_MEMORYTYPE_HOST 1
#define CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL 9
#define CU_STREAM_NON_BLOCKING 1
#define CU_OUT_OF_MEMORY 2
#define CU_CONTEXT_IS_DESTROYED 709

_Atomic size_t gdr_dma_least_to = SIZE_MAX, gdr_dma_least_from = SIZE_MAX;

/* Functions of libcuda.so.1. All return a CUresult. */
struct cuda {
	int (*pointer_attribute)(void *value, int attribute, uint64_t ptr);
	int (*pointer_attributes)(unsigned int n, int *attributes, void **values, uint64_t ptr);
	int (*device_get)(int *device, int ordinal);
	int (*primary_retain)(void **ctx, int device);
	int (*primary_release)(int device);
	int (*push)(void *ctx);
	int (*pop)(void **ctx);
	int (*stream_create)(void **stream, unsigned int flags);
	int (*stream_wait)(void *stream);
	int (*to)(uint64_t dst, const void *src, size_t n, void *stream);
	int (*from)(void *dst, uint64_t src, size_t n, void *stream);
};

/* One GPU, until it is reset. Its stream is words.stream. */
struct gpu {
	void *ctx;
	struct gdr_words words;
	struct gdr_ring ring;
	const void *locked;	/* memory that a reset ends the lock of; NULL: there is none */
};

/* One handle. key is stored last. What a handle names never changes. */
struct entry {
	_Atomic uint64_t key;
	uint64_t gpu_addr;
	struct gpu *gpu;
};

struct gdr_dma {
	struct cuda cuda;
	struct gpu *gpus[GPUS_MAX];	/* NULL until a mapping of it is made */
	_Atomic bool logged;	/* a failed copy */
	struct entry entries[GDR_SLOT_COUNT];
};

void gdr_dma_want(size_t from, size_t to)
{
	atomic_store(&gdr_dma_least_from, from);
	atomic_store(&gdr_dma_least_to, to);
}

static bool find_all(struct cuda *c)
{
	return gdr_driver_find("cuPointerGetAttribute", &c->pointer_attribute) &&
	       gdr_driver_find("cuPointerGetAttributes", &c->pointer_attributes) &&
	       gdr_driver_find("cuDeviceGet", &c->device_get) &&
	       gdr_driver_find("cuDevicePrimaryCtxRetain", &c->primary_retain) &&
	       gdr_driver_find("cuDevicePrimaryCtxRelease_v2", &c->primary_release) &&
	       gdr_driver_find("cuCtxPushCurrent_v2", &c->push) &&
	       gdr_driver_find("cuCtxPopCurrent_v2", &c->pop) &&
	       gdr_driver_find("cuStreamCreate", &c->stream_create) &&
	       gdr_driver_find("cuStreamSynchronize", &c->stream_wait) &&
	       gdr_driver_find("cuMemcpyHtoDAsync_v2", &c->to) &&
	       gdr_driver_find("cuMemcpyDtoHAsync_v2", &c->from);
}

static struct gdr_dma *new_dma(void)
{
	size_t len = sizeof(struct gdr_dma);
	struct gdr_dma *dma;

	dma = mmap(NULL, len, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (dma == MAP_FAILED)
		return NULL;
	madvise(dma, len, MADV_DONTFORK);
	if (find_all(&dma->cuda))
		return dma;
	munmap(dma, len);
	return NULL;
}

/*
 * Asked for several attributes, the driver answers 0 for memory that it does not know.
 * Asked for one, it fails, which debuggers of CUDA report.
 */
static bool is_locked(const struct cuda *c, const void *host)
{
	int attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE, type = 0;
	void *value = &type;

	return !c->pointer_attributes(1, &attribute, &value, (uintptr_t)host) &&
	       type == CU_MEMORYTYPE_HOST;
}

/* Whether nobody has reset the GPU, whose context is current. */
static bool is_alive(const struct cuda *c, const struct gpu *gpu)
{
	return !gpu->locked || is_locked(c, gpu->locked);
}

static int make_stream(const struct cuda *c, struct gpu *gpu)
{
	void *stream;
	int rc;

	rc = c->stream_create(&stream, CU_STREAM_NON_BLOCKING);
	if (rc)
		return rc;
	gdr_words_start(&gpu->words, stream, c->stream_wait);
	gdr_ring_start(&gpu->ring);
	if (gpu->ring.at && is_locked(c, gpu->ring.at))
		gpu->locked = gpu->ring.at;
	return 0;
}

/* Makes a GPU, and retains its primary context for good. */
static int new_gpu(const struct cuda *c, int ordinal, struct gpu **out)
{
	struct gpu *gpu = calloc(1, sizeof(*gpu));
	int device, rc;
	void *popped;

	if (!gpu)
		return CU_OUT_OF_MEMORY;
	rc = c->device_get(&device, ordinal);
	if (!rc)
		rc = c->primary_retain(&gpu->ctx, device);
	if (rc)
		goto no_context;
	rc = c->push(gpu->ctx);
	if (!rc) {
		rc = make_stream(c, gpu);
		c->pop(&popped);
	}
	if (rc)
		goto no_stream;
	*out = gpu;
	return 0;

no_stream:
	c->primary_release(device);
no_context:
	free(gpu);
	return rc;
}

static bool was_reset(const struct cuda *c, const struct gpu *gpu)
{
	bool reset;
	void *popped;

	if (c->push(gpu->ctx))
		return true;
	reset = !is_alive(c, gpu);
	c->pop(&popped);
	return reset;
}

/* Finds the GPU that has addr, and makes its stream if there is none. */
static int start_gpu(struct gdr_dma *dma, uint64_t addr, struct gpu **out)
{
	const struct cuda *c = &dma->cuda;
	struct gpu **gpu;
	int ordinal = -1, rc;

	rc = c->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, addr);
	if (rc || ordinal < 0 || ordinal >= GPUS_MAX)
		return rc ? rc : -1;
	gpu = &dma->gpus[ordinal];
	if (!*gpu || was_reset(c, *gpu))
		rc = new_gpu(c, ordinal, gpu);
	*out = *gpu;
	return rc;
}

void gdr_dma_map(gdr_dma_ref *ref, uint64_t key, uint64_t gpu_addr)
{
	struct gdr_dma *dma = atomic_load(ref);
	struct gpu *gpu = NULL;
	struct entry *e;
	int rc;

	if (!dma) {
		dma = new_dma();
		if (!dma) {
			gdr_log(GDR_LOG_WARN, "no copies by DMA: no memory, or this process has not loaded libcuda.so.1");
			return;
		}
		atomic_store_explicit(ref, dma, memory_order_release);
	}
	rc = start_gpu(dma, gpu_addr, &gpu);
	if (rc) {
		gdr_log(GDR_LOG_WARN, "no copies by DMA through handle %#lx: the CUDA driver answered %d", key, rc);
		return;
	}
	e = &dma->entries[key & (GDR_SLOT_COUNT - 1)];
	atomic_store(&e->key, 0);
	e->gpu_addr = gpu_addr;
	e->gpu = gpu;
	atomic_store_explicit(&e->key, key, memory_order_release);
}

bool gdr_dma_has(struct gdr_dma *dma, uint64_t key)
{
	return dma && atomic_load_explicit(&dma->entries[key & (GDR_SLOT_COUNT - 1)].key,
					   memory_order_acquire) == key;
}

bool gdr_dma_is_locked(struct gdr_dma *dma, const void *host)
{
	return is_locked(&dma->cuda, host);
}

/*
 * A copy with pageable memory is over, or nearly so, when the driver's call returns. So a
 * word is no gain there.
 */
static int wait_for(struct gpu *gpu, bool locked)
{
	struct gdr_words *words = &gpu->words;

	return locked ? gdr_words_wait(words, gdr_words_ask(words)) : words->sync(words->stream);
}

static int make_copy(const struct cuda *c, const struct entry *e, const struct gdr_dma_copy *copy)
{
	struct gpu *gpu = e->gpu;
	uint64_t at = e->gpu_addr + copy->off;
	int rc;

	if (copy->out && gdr_ring_take(&gpu->ring)) {
		const struct gdr_ring_read r = {
			.src = at, .host = copy->host, .n = copy->n, .from = c->from,
			.out = copy->out, .arg = copy->arg,
		};

		return gdr_ring_read(&gpu->ring, &gpu->words, &r);
	}
	if (copy->to)
		rc = c->to(at, copy->host, copy->n, gpu->words.stream);
	else
		rc = c->from(copy->host, at, copy->n, gpu->words.stream);
	return rc ? rc : wait_for(gpu, copy->locked);
}

bool gdr_dma_copy(struct gdr_dma *dma, const struct gdr_dma_copy *copy)
{
	const struct entry *e;
	const struct cuda *c;
	void *popped;
	int rc;

	if (!gdr_dma_has(dma, copy->key))
		return false;
	c = &dma->cuda;
	e = &dma->entries[copy->key & (GDR_SLOT_COUNT - 1)];
	rc = c->push(e->gpu->ctx);
	if (!rc) {
		rc = is_alive(c, e->gpu) ? make_copy(c, e, copy) : CU_CONTEXT_IS_DESTROYED;
		c->pop(&popped);
	}
	if (rc && !atomic_exchange(&dma->logged, true))
		gdr_log(GDR_LOG_WARN, "a copy by DMA failed, and the CPU made it: the CUDA driver answered %d; this is said but once",
			rc);
	return rc == 0;
}
