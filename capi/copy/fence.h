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

/*
 * Sends every store of this thread to a WC mapping to the device, before any later store.
 *
 * - x86-64: WC buffers drain at no set time. SFENCE drains them.
 * - arm64: DMB OSHST would order the stores, but a store may stay in a gathering buffer.
 *   DSB ST returns only when the stores have completed for the whole system, so no byte
 *   stays behind.
 * - ppc64: the light barriers do not order cache-inhibited storage. SYNC does.
 */
static inline void copy_fence_store(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__asm__ __volatile__("sfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ __volatile__("dsb st" ::: "memory");
#elif defined(__powerpc__)
	__asm__ __volatile__("sync" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Completes all earlier loads and stores, of any memory type, before any later ones. */
static inline void copy_fence_full(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__asm__ __volatile__("mfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ __volatile__("dsb sy" ::: "memory");
#elif defined(__powerpc__)
	__asm__ __volatile__("sync" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
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
#if defined(__aarch64__)
	__asm__ __volatile__("dmb osh" ::: "memory");
#else
	copy_fence_full();
#endif
}

/*
 * Before a read by plain loads. A plain load is never served from a streaming load
 * buffer, so order is enough: no load begins before the load of the flag that said the
 * data is there is over.
 *
 * x86-64: LFENCE waits for earlier loads, and nothing later begins before it ends.
 */
static inline void copy_fence_load_begin(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__asm__ __volatile__("lfence" ::: "memory");
#else
	copy_fence_read_begin();
#endif
}

/*
 * After a read, so that nothing that the caller does next runs ahead of it. WC loads are
 * weakly ordered. Without this fence a later load may be older than the data just read.
 * And a later store (one that hands the buffer back) may reach the device before the last
 * line was fetched.
 *
 * - x86-64: LFENCE waits for the loads, and nothing later begins before it ends.
 * - arm64: DMB OSHLD orders the loads before all later loads and stores.
 */
static inline void copy_fence_read_end(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__asm__ __volatile__("lfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ __volatile__("dmb oshld" ::: "memory");
#else
	copy_fence_full();
#endif
}

#endif
