/* SPDX-License-Identifier: MIT */
/*
 * data.h - what the rest of the front asks of the copies.
 */
#ifndef GDR_DATA_H
#define GDR_DATA_H

#include <stdint.h>

#include "core.h"
#include "host/front.h"

#pragma GCC visibility push(hidden)

/* A call of the core that may end mappings. While copies run through them, it is made again. */
#define ENDING(call) ({						\
	unsigned int tries_ = 0;				\
	int ended_;						\
								\
	while ((ended_ = INSIDE(call)) == GDR_CORE_COPIES)	\
		gdr_data_wait(tries_++);			\
	ended_;							\
})

/*
 * Ends the copies through key that this thread's record shows; for key 0, all copies.
 * gdr_unmap calls it before the mapping goes. The thread that unmaps is in no copy. But a
 * siglongjmp out of a copy may have left the record set, and then the unmap would wait
 * for ever.
 */
void gdr_data_forget(uint64_t key);

/*
 * Waits for copies that keep a mapping: some microseconds, more after many tries. Nothing
 * is held meanwhile, and a handler may leave it. Copies of threads that have ended are
 * over. errno stays.
 */
void gdr_data_wait(unsigned int tries);

#pragma GCC visibility pop

#endif
