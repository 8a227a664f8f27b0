// SPDX-License-Identifier: MIT
#include "words.h"

#include <stdbool.h>
#include <stddef.h>

#include "copy/clock.h"
#include "copy/pause.h"
#include "driver.h"
#include "locked.h"

#define WORDS 64		/* a bit each in gdr_words.free */
#define WORD_APART 64u		/* a line each */
#define LOOKS 64		/* between two readings of the clock */
#define LOOK_NS 1000000u	/* the engine copies 50 MB in that time (H200) */

/* The stream's alone to write, from the time that it was asked to until it has. */
struct gdr_word {
	_Alignas(WORD_APART) _Atomic uint32_t value;
};

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

struct gdr_asked gdr_words_ask(struct gdr_words *words)
{
	struct gdr_asked asked = { .word = take(words) };
	uint64_t at;

	if (asked.word < 0)
		return asked;
	asked.value = atomic_load_explicit(&words->at[asked.word].value, memory_order_relaxed) + 1;
	at = words->gpu_at + (uint64_t)asked.word * sizeof(struct gdr_word);
	if (words->write(words->stream, at, asked.value, 0)) {
		give_back(words, asked.word);
		asked.word = -1;
	}
	return asked;
}

static bool look(struct gdr_words *words, struct gdr_asked asked)
{
	_Atomic uint32_t *word = &words->at[asked.word].value;

	for (int looks = 0; looks < LOOKS; looks++) {
		if (atomic_load_explicit(word, memory_order_acquire) == asked.value)
			return true;
		copy_pause();
	}
	return false;
}

static bool is_seen(struct gdr_words *words, struct gdr_asked asked)
{
	uint64_t begin = copy_now_ns();
	bool seen;

	do
		seen = look(words, asked);
	while (!seen && copy_now_ns() - begin < LOOK_NS);
	return seen;
}

int gdr_words_wait(struct gdr_words *words, struct gdr_asked asked)
{
	int rc;

	if (asked.word < 0)
		return words->sync(words->stream);
	rc = is_seen(words, asked) ? 0 : words->sync(words->stream);
	if (!rc)
		give_back(words, asked.word);
	return rc;
}

/* Whether the driver can write a word, and the CPU sees it. */
static bool try_first(struct gdr_words *words)
{
	return !words->write(words->stream, words->gpu_at, 1, 0) && !words->sync(words->stream) &&
	       atomic_load(&words->at[0].value) == 1;
}

void gdr_words_start(struct gdr_words *words, void *stream, int (*sync)(void *stream))
{
	size_t len = WORDS * sizeof(struct gdr_word);

	words->stream = stream;
	words->sync = sync;
	if (!gdr_driver_find("cuStreamWriteValue32_v2", &words->write))
		return;
	words->at = gdr_locked_new(len, &words->gpu_at);
	if (!words->at)
		return;
	if (try_first(words)) {
		atomic_store(&words->free, UINT64_MAX);
	} else {
		gdr_locked_free(words->at, len);
		words->at = NULL;
	}
}
