/* SPDX-License-Identifier: MIT */
/*
 * data.h - what the rest of the front asks of the copies.
 */
#ifndef GDR_DATA_H
#define GDR_DATA_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/*
 * Ends what this thread's record says of copies through key, or of all copies
 * for key 0. Called before a mapping goes: the thread that takes it down is in
 * no copy, but a siglongjmp out of one may have left its record set, and the
 * unmap would wait for it for ever.
 */
void gdr_data_forget(uint64_t key);

#pragma GCC visibility pop

#endif
