/* SPDX-License-Identifier: MIT */
/*
 * fence.h - the fences around copies through a mapping.
 *
 * A write: the copy, then copy_fence_store(). A read: copy_fence_read_begin(),
 * or copy_fence_load_begin() if it has no streaming loads, the copy, then
 * copy_fence_read_end(). docs/dataplane.md names the manuals. When mappings of more than one type are
 * live in the process, copy_fence_full() stands in for the store fence: that
 * orders stores alone, and a later read of a caching mapping may pass a write
 * that still sits in a write-combining buffer. The fences around a read hold
 * for every type as they are.
 */
#ifndef GDR_COPY_FENCE_H
#define GDR_COPY_FENCE_H

/*
 * Puts every store of this thread to a WC mapping on its way to the device,
 * before any later store.
 *
 * x86-64: WC buffers drain at no set time; SFENCE drains them.
 * arm64: DMB OSHST would order the stores, but lets them wait in a gathering
 * buffer. DSB ST returns only when they have completed for the whole system,
 * so the last byte never lingers.
 * ppc64: the light barriers do not order cache-inhibited storage, SYNC does.
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

/* All loads and stores before it, of any memory type, complete before any after it. */
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
 * x86-64: MOVNTDQA may be served from a streaming load buffer, which holds the
 * line as it was at an earlier streaming load and snoops nobody. And a WC load
 * may run ahead of the load of the flag that said the data is there. MFENCE is
 * the instruction that cures both; LFENCE cures only the second.
 * arm64: there is no such buffer; order is enough, in the domain that holds
 * the devices (outer shareable).
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
 * Before a read by plain loads. These are never served from a streaming load
 * buffer, so their order is enough: none begins before the load of the flag that
 * said the data is there is over.
 *
 * x86-64: LFENCE waits for earlier loads, and lets nothing later begin.
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
 * After a read, so that nothing the caller does next runs ahead of it. WC
 * loads are weakly ordered: without this, a later load may be older than the
 * data just read, and a later store (handing the buffer back) may reach the
 * device before the last line has been fetched.
 *
 * x86-64: LFENCE waits for the loads, and lets nothing later begin.
 * arm64: DMB OSHLD orders the loads before all later loads and stores.
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
