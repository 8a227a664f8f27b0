/* SPDX-License-Identifier: MIT */
/*
 * words.h - words of page-locked memory, by which a stream of CUDA's shows that it is
 * done. To look at a word takes less time than cuStreamSynchronize.
 *
 * 1. A thread takes a word, so that nobody else waits by it.
 * 2. It has the stream write the word's next number to it, after the thread's own work.
 *    Streams do one thing after the other, whichever thread asked for it.
 * 3. It looks at the word for a while, until the number is there. Then it asks the driver,
 *    which knows of errors, too.
 *
 * A word that its thread left (siglongjmp, an error of the stream) stays taken: the stream
 * may still write to it.
 */
#ifndef GDR_WORDS_H
#define GDR_WORDS_H

#include <stdatomic.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct gdr_word;

/* The words of one stream. */
struct gdr_words {
	_Atomic uint64_t free;	/* a bit for each word that nobody has; 0 if there are none */
	struct gdr_word *at;
	uint64_t gpu_at;	/* the GPU's address of them */
	void *stream;
	int (*write)(void *stream, uint64_t at, uint32_t value, unsigned int flags);
	int (*sync)(void *stream);
};

/* What the stream shall write. */
struct gdr_asked {
	int word;		/* -1: nothing */
	uint32_t value;
};

/*
 * Makes the words of a stream, whose context is current, and tries one. sync is
 * cuStreamSynchronize. Where the driver lacks what this takes, there are none.
 */
void gdr_words_start(struct gdr_words *words, void *stream, int (*sync)(void *stream));

/* Has the stream write a word when it has done what this thread had it do. */
struct gdr_asked gdr_words_ask(struct gdr_words *words);

/* Waits until it has. Returns 0, or what sync answers. */
int gdr_words_wait(struct gdr_words *words, struct gdr_asked asked);

#pragma GCC visibility pop

#endif
