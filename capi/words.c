// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "words.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

#include "copy/pause.h"
#include "driver.h"

#define WORDS 64		/* a bit each in gdr_words.free */
#define WORD_APART 64u		/* a line each */
#define LOOKS 1024		/* some 50 us: 16 MiB take 300 us, of which the driver's 1 us is little */

#define CU_MEMHOSTREGISTER_DEVICEMAP 2
#define CU_STREAM_CAPTURE_MODE_RELAXED 2

/* The stream's alone to write, from the time that it was told to until it has. */
struct gdr_word {
	_Alignas(WORD_APART) _Atomic uint32_t value;
};

/* Functions of libcuda.so.1 that make words. */
struct maker {
	int (*lock)(void *addr, size_t n, unsigned int flags);
	int (*unlock)(void *addr);
	int (*gpu_address)(uint64_t *at, void *addr, unsigned int flags);
	int (*exchange_mode)(int *mode);
};

static bool find_all(struct maker *m, struct gdr_words *words)
{
	return gdr_driver_find("cuMemHostRegister_v2", &m->lock) &&
	       gdr_driver_find("cuMemHostUnregister", &m->unlock) &&
	       gdr_driver_find("cuMemHostGetDevicePointer_v2", &m->gpu_address) &&
	       gdr_driver_find("cuThreadExchangeStreamCaptureMode", &m->exchange_mode) &&
	       gdr_driver_find("cuStreamWriteValue32_v2", &words->write);
}

static int take(struct gdr_words *words)
{
	uint64_t free = atomic_load_explicit(&words->free, memory_order_relaxed);

	while (free)
		if (atomic_compare_exchange_weak_explicit(&words->free, &free, free & (free - 1),
							  memory_order_acquire,
							  memory_order_relaxed))
			return __builtin_ctzll(free);
	return -1;
}

static void give_back(struct gdr_words *words, int i)
{
	atomic_fetch_or_explicit(&words->free, 1ull << i, memory_order_release);
}

/* Has the stream write word i's next number, and looks for it. false: ask the driver. */
static bool is_seen(struct gdr_words *words, int i, void *stream)
{
	_Atomic uint32_t *word = &words->at[i].value;
	uint32_t next = atomic_load_explicit(word, memory_order_relaxed) + 1;

	if (words->write(stream, words->gpu_at + (uint64_t)i * sizeof(struct gdr_word), next, 0))
		return false;
	for (int looks = 0; looks < LOOKS; looks++) {
		if (atomic_load_explicit(word, memory_order_acquire) == next)
			return true;
		copy_pause();
	}
	return false;
}

int gdr_words_wait(struct gdr_words *words, void *stream, int (*sync)(void *stream))
{
	int i = take(words), rc;

	if (i < 0)
		return sync(stream);
	rc = is_seen(words, i, stream) ? 0 : sync(stream);
	if (!rc)
		give_back(words, i);
	return rc;
}

/* Whether the driver can write a word, and the CPU sees it. */
static bool try_first(struct gdr_words *words, void *stream, int (*sync)(void *stream))
{
	return !words->write(stream, words->gpu_at, 1, 0) && !sync(stream) &&
	       atomic_load(&words->at[0].value) == 1;
}

void gdr_words_start(struct gdr_words *words, void *stream, int (*sync)(void *stream))
{
	size_t len = WORDS * sizeof(struct gdr_word);
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct maker m;

	if (!find_all(&m, words))
		return;
	words->at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (words->at == MAP_FAILED)
		return;
	madvise(words->at, len, MADV_DONTFORK);
	/* A capture of a CUDA graph on another thread must go on. */
	if (m.exchange_mode(&mode))
		goto out_unmap;
	if (m.lock(words->at, len, CU_MEMHOSTREGISTER_DEVICEMAP))
		goto out_mode;
	if (!m.gpu_address(&words->gpu_at, words->at, 0) && try_first(words, stream, sync))
		atomic_store(&words->free, UINT64_MAX);
	else
		m.unlock(words->at);
out_mode:
	m.exchange_mode(&mode);
out_unmap:
	if (!atomic_load(&words->free))
		munmap(words->at, len);
}
