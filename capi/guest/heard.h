/* SPDX-License-Identifier: MIT */
/*
 * heard.h - the table of what libcuda has told the kernel: which memory object lies where.
 *
 * Of each address it has one of three answers. Heard: an object lies there. Gone: the end of
 * what lay there was heard, and no map since. Unheard: all else.
 *
 * 1. In doubt an entry is dropped. A dropped entry costs a question to CUDA; a wrong one
 *    shows other memory.
 * 2. Ends are noted before the kernel is asked for them, and maps after the kernel has made
 *    them. So no entry outlives its map.
 * 3. No two entries have one number. The kernel gives handles again at once, so an object's
 *    handle does not tell one memory from the next.
 * 4. While the lock is held, signals are too, and nothing of others is called. The memory is
 *    reserved at the start, by system calls: hosts hook malloc and mmap.
 * 5. A fork empties the table: a child has none before it starts its own.
 * 6. Without room, or if the lock cannot be had, the table ends for good: all is unheard.
 *
 * The functions are thread-safe, and may be called in a signal handler.
 */
#ifndef GDR_HEARD_H
#define GDR_HEARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Bytes that lie in one object, from base to before end. */
struct gdr_heard {
	uint64_t base, end;
	uint64_t number;	/* 0: gone */
	uint64_t offset;	/* of base in the object */
	uint32_t client, object;
	int32_t control;	/* libcuda's descriptor of the client */
	uint32_t parent;	/* the object is a GPU's memory (class 0x40) below it; 0: not known yet */
	uint32_t gpu;		/* what gdr_heard_learn was given */
	uint8_t uuid[16];	/* of the GPU that the object was mapped for; another one may have it */
};

/* A request of libcuda's, by what it does to the table. */
struct gdr_told {
	enum gdr_telling {
		GDR_TOLD_MAP,		/* the range is the object, from offset on */
		GDR_TOLD_RANGE,		/* a range was made that GDR_TOLD_FREE may end */
		GDR_TOLD_MEMORY,	/* an object of a GPU's memory is made */
		GDR_TOLD_CLIENT,	/* a client is made */
		/* From here on something ends. */
		GDR_TOLD_FREE,		/* that range ends; end 0: it is not said where */
		GDR_TOLD_UNMAP,		/* the map of one GPU (uuid) ends in the range */
		GDR_TOLD_LOSS,		/* what lies in the range is not known */
		GDR_TOLD_OBJECT,	/* an object is freed; object 0: all of the client may be */
	} what;
	struct gdr_heard is;
	uint64_t since;		/* of a map under way: another one for each; 0: it did not begin */
	bool known;		/* the table has had just this map */
};

/* Makes the table, if there is none. */
void gdr_heard_start(void);

/* Ends it for good. Returns whether it had not ended. */
bool gdr_heard_stop(void);

/* Drops all. */
void gdr_heard_reset(void);

/* Whether there is a table that listens. */
bool gdr_heard_listens(void);

/* Around the request. done: the kernel has done it. */
void gdr_heard_before(struct gdr_told *t);
void gdr_heard_after(struct gdr_told *t, bool done);

/* What a range is: gone, if a part is; else unheard, if a part is. */
struct gdr_hearing {
	enum gdr_answer { GDR_UNHEARD, GDR_HEARD, GDR_GONE } answer;
	uint32_t clients;	/* another number after handles of a client's devices may be others' */
	uint64_t ends;		/* another number after anything has ended */
	size_t entries;		/* if it is heard: that it lies in */
};

/* What lies from base to before end. Writes up to room entries, in the order of addresses. */
struct gdr_hearing gdr_heard_at(uint64_t base, uint64_t end, struct gdr_heard *list, size_t room);

/* Keeps an entry's parent, which was learned, if the entry stands still. parent 0: drops the entry. */
void gdr_heard_keep(const struct gdr_heard *e);

/* Adds what was learned otherwise, unless something has ended since, or is known of the range. */
void gdr_heard_learn(const struct gdr_heard *e, uint64_t ends);

#pragma GCC visibility pop

#endif
