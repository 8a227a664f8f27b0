/* SPDX-License-Identifier: MIT */
/*
 * engine.h - a GPU's copy engine: a stream of the library's own, and page-locked memory.
 *
 * The engine reads and writes page-locked memory alone. Other memory of the host's goes
 * through staging chunks, which the caller's threads fill or empty. So the driver never
 * touches memory that may fault, and a handler may leave a copy by siglongjmp.
 *
 * A copy, or a chunk of one, takes a slot. A slot has a completion word, and some have a
 * chunk.
 *
 * 1. A thread takes a slot. So no other thread uses its word.
 * 2. It has the stream write the word's next number after the thread's own work. A stream
 *    does one thing after the other.
 * 3. It looks at the word for a while, until the number is there. Then it asks the driver,
 *    which knows of errors, too. To look takes less time than cuStreamSynchronize.
 *
 * After an error the stream may still have work. The slots are lost until the stream was
 * found idle: at once, or where the driver fails again, by a later copy.
 *
 * A reset of the GPU ends the stream and the page lock. The driver must not get such a
 * stream, so each call asks first whether the memory is still page-locked. An engine is
 * never freed: a copy may still look at it.
 *
 * A mapping shows the memory that was pinned. An address means what lies there today:
 * memory that was freed, and allocated anew at the same address, is another one. CUDA
 * gives each memory a number, BUFFER_ID, that it never gives again. So a copy by address
 * reaches the pinned memory if the numbers are still those of the pin.
 */
#ifndef GDR_ENGINE_H
#define GDR_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Functions of libcuda.so.1. All return a CUresult: 0, or an error above 0. */
struct gdr_cuda_calls {
	int (*attributes)(unsigned int n, int *names, void **values, uint64_t ptr);
	int (*push)(void *ctx);
	int (*pop)(void **ctx);
	int (*stream_wait)(void *stream);
	int (*to)(uint64_t dst, const void *src, size_t n, void *stream);
	int (*from)(void *dst, uint64_t src, size_t n, void *stream);
	/* NULL in an old driver */
	int (*write)(void *stream, uint64_t at, uint32_t value, unsigned int flags);
	int (*exchange_mode)(int *mode);
};

/* One memory. Go finds it (cuda.Extent). */
struct gdr_extent {
	uint64_t start, end;
	_Atomic uint64_t id;	/* 0: the address means another memory since */
};

/* The memories in a range, by address. What lies between them is free, or unknown. */
struct gdr_extents {
	size_t count;
	struct gdr_extent at[];
};

/*
 * Whether all n bytes at addr are of the same memories as then. A memory that has gone
 * does not come back. With c NULL the driver is not asked: false is certain.
 */
bool gdr_extents_are_same(const struct gdr_cuda_calls *c, struct gdr_extents *x, uint64_t addr,
			  uint64_t n);

/* An engine lies in page-locked memory. Go makes both (dma.go): it has this many bytes. */
struct gdr_engine;
extern const size_t gdr_engine_bytes, gdr_engine_word;	/* and a word here for the stream to write */

struct gdr_engine_parts {
	struct gdr_cuda_calls unscoped;	/* one function of engine.c reads it */
	void *ctx;		/* primary, and retained */
	void *stream;
	uint64_t gpu_at;	/* the GPU's address of the engine */
	bool writes_words;	/* the stream can, and the CPU sees them */
};

/* Copies n bytes between the host's memory and a staging chunk, on their way. */
typedef void gdr_stage(const void *arg, void *host, void *chunk, size_t n);

struct gdr_engine_copy {
	uint64_t at;		/* the GPU's address */
	void *host;
	size_t n;
	bool to;		/* the GPU */
	bool locked;		/* host is page-locked */
	struct gdr_extents *memory;	/* what at must still belong to */
	const void *owner;	/* identifies the thread */
	gdr_stage *stage;
	const void *arg;	/* stage's */
};

/* What no driver answers. */
#define GDR_ENGINE_BUSY (-1)	/* others have all slots */
#define GDR_ENGINE_OTHER_MEMORY (-2)

/* Begins to use an engine, whose memory is zeroes. */
void gdr_engine_begin(struct gdr_engine *e, const struct gdr_engine_parts *parts);

/* Whether the driver knows the first byte of host memory as page-locked. */
bool gdr_engine_is_locked(struct gdr_engine *e, void *host);

/*
 * Makes a copy, and returns when the bytes are there. Else some may have been copied. The
 * caller is in no context of the library's.
 */
int gdr_engine_copy(struct gdr_engine *e, const struct gdr_engine_copy *copy);

/*
 * Ends a copy that owner left by siglongjmp. It waits for what the engine has begun, and
 * makes no call of the driver.
 */
void gdr_engine_forget(struct gdr_engine *e, const void *owner);

#pragma GCC visibility pop

#endif
