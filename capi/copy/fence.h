/* SPDX-License-Identifier: MIT */
/*
 * fence.h - the fences around copies through a mapping.
 *
 * - A write: the copy, then copy_fence_store().
 * - A read: copy_fence_read_begin(), the copy, copy_fence_read_end(). A read without
 *   streaming loads begins with copy_fence_load_begin().
 * - A write while mappings of more than one type are live: copy_fence_full() instead of
 *   copy_fence_store(). The store fence orders stores alone. A later read of a caching
 *   mapping may then pass a write that still is in a write-combining buffer.
 *
 * The fences around a read are enough for every type. docs/dataplane.md names the
 * manuals.
 */
#ifndef GDR_COPY_FENCE_H
#define GDR_COPY_FENCE_H

#if defined(__x86_64__)
#define FENCE_STORE "sfence"
#define FENCE_FULL "mfence"
#define FENCE_READ_BEGIN FENCE_FULL
#define FENCE_LOAD_BEGIN "lfence"
#define FENCE_READ_END "lfence"
#elif defined(__aarch64__)
#define FENCE_STORE "dsb st"
#define FENCE_FULL "dsb sy"
#define FENCE_READ_BEGIN "dmb osh"
#define FENCE_LOAD_BEGIN FENCE_READ_BEGIN
#define FENCE_READ_END "dmb oshld"
#elif defined(__powerpc64__)
/* The light barriers do not order cache-inhibited storage. */
#define FENCE_STORE "sync"
#define FENCE_FULL "sync"
#define FENCE_READ_BEGIN "sync"
#define FENCE_LOAD_BEGIN "sync"
#define FENCE_READ_END "sync"
#endif

/*
 * Sends every store of this thread to a WC mapping to the device, before any later store.
 *
 * - x86-64: WC buffers drain at no set time. SFENCE drains them.
 * - arm64: DMB OSHST would order the stores, but a store may stay in a gathering buffer.
 *   DSB ST returns only when the stores have completed for the whole system, so no byte
 *   stays behind.
 */
static inline void copy_fence_store(void)
{
	__asm__ __volatile__(FENCE_STORE ::: "memory");
}

/* Completes all earlier loads and stores, of any memory type, before any later ones. */
static inline void copy_fence_full(void)
{
	__asm__ __volatile__(FENCE_FULL ::: "memory");
}

/*
 * Before a read by streaming loads, so that it sees what the device wrote before now.
 *
 * - x86-64: MOVNTDQA may be served from a streaming load buffer. The buffer holds the
 *   line as it was at an earlier streaming load, and does not snoop. A WC load may also
 *   run ahead of the load of the flag that said the data is there. MFENCE prevents both;
 *   LFENCE prevents only the second.
 * - arm64: there is no such buffer. Order is enough, in the domain with the devices
 *   (outer shareable).
 */
static inline void copy_fence_read_begin(void)
{
	__asm__ __volatile__(FENCE_READ_BEGIN ::: "memory");
}

/*
 * Before a read by plain loads. A plain load is never served from a streaming load
 * buffer, so order is enough: no load begins before the load of the flag that said the
 * data is there is over.
 */
static inline void copy_fence_load_begin(void)
{
	__asm__ __volatile__(FENCE_LOAD_BEGIN ::: "memory");
}

/*
 * After a read, so that nothing that the caller does next runs ahead of it. WC loads are
 * weakly ordered. Without this fence a later load may be older than the data just read.
 * And a later store (one that hands the buffer back) may reach the device before the last
 * line was fetched. LFENCE waits for the loads, and nothing later begins before it ends.
 */
static inline void copy_fence_read_end(void)
{
	__asm__ __volatile__(FENCE_READ_END ::: "memory");
}

#endif
