/* SPDX-License-Identifier: MIT */
/*
 * data.h - what the rest of the front asks of the copies.
 */
#ifndef GDR_DATA_H
#define GDR_DATA_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/*
 * Ends the copies through key that this thread's record shows; for key 0, all copies.
 * gdr_unmap calls it before the mapping goes. The thread that unmaps is in no copy. But a
 * siglongjmp out of a copy may have left the record set, and then the unmap would wait
 * for ever.
 */
void gdr_data_forget(uint64_t key);

#pragma GCC visibility pop

#endif
