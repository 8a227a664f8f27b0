/* SPDX-License-Identifier: MIT */
/*
 * routine.h - a copy routine, made from one kind of register. Each file that includes it
 * becomes a routine. It has defined before:
 *
 * - TARGET: the function attribute for the registers' instructions; may be empty.
 * - vec: the register's type, of 8 to 64 bytes.
 * - LOAD, STORE: an instruction that loads operand 0 from the device's aligned vec in
 *   operand 1, and one that stores operand 1 to operand 0. LOAD_ONE: a plain load.
 *   All are asm, as no compiler may split, merge or drop a device access. A routine
 *   without asm has defined load_dev, load_one and store_dev instead.
 * - STREAMS: 1 if LOAD fetches the whole line of 64 bytes, 0 if it fetches a vec.
 * - GROUP: lines that are loaded from the device before the first of them is stored.
 * - PUT(dev, host, n): writes less than a line.
 * - NAME, ROUTINE: its name as a string, and as a struct copy_impl.
 */
#include "parts.h"

#define INLINE static inline __attribute__((always_inline)) TARGET
#define VECS (COPY_LINE / sizeof(vec))

/* Compilers unroll no loop of many volatile accesses by themselves. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

#if defined(LOAD)
#if defined(__x86_64__)
#define REGISTER "x"
#else
#define REGISTER "w"
#endif

INLINE vec load_dev(const void *dev)
{
	vec v;

	__asm__ __volatile__(LOAD : "=" REGISTER(v) : "m"(*(const vec *)dev));
	return v;
}

INLINE vec load_one(const void *dev)
{
	vec v;

	__asm__ __volatile__(LOAD_ONE : "=" REGISTER(v) : "m"(*(const vec *)dev));
	return v;
}

INLINE void store_dev(void *dev, vec v)
{
	__asm__ __volatile__(STORE : "=m"(*(vec *)dev) : REGISTER(v));
}
#endif

INLINE vec load_host(const void *host)
{
	vec v;

	memcpy(&v, host, sizeof(v));
	return v;
}

INLINE void store_host(void *host, vec v)
{
	memcpy(host, &v, sizeof(v));
}

/* All loads come first, then all stores. */
INLINE void move(uint8_t *to, const uint8_t *from, const size_t n,
		 vec (*load)(const void *), void (*store)(void *, vec))
{
	vec v[GROUP * VECS];

	UNROLL
	for (size_t i = 0; i < n / sizeof(vec); i++)
		v[i] = load(from + i * sizeof(vec));
	UNROLL
	for (size_t i = 0; i < n / sizeof(vec); i++)
		store(to + i * sizeof(vec), v[i]);
}

INLINE void move_lines(uint8_t *to, const uint8_t *from, size_t n, const size_t group,
		       vec (*load)(const void *), void (*store)(void *, vec))
{
	for (; n >= group; n -= group, to += group, from += group)
		move(to, from, group, load, store);
	for (; n; n -= COPY_LINE, to += COPY_LINE, from += COPY_LINE)
		move(to, from, COPY_LINE, load, store);
}

INLINE void lines_to(void *dev, const void *host, size_t n)
{
	move_lines(dev, host, n, (GROUP < 4 ? GROUP : 4) * COPY_LINE, load_host, store_dev);
}

INLINE void lines_from(void *host, const void *dev, size_t n)
{
	move_lines(host, dev, n, GROUP * COPY_LINE, load_dev, store_host);
}

/* Stores n bytes, from the one at off on, of what was loaded. */
#if !defined(KEEP)
#define KEEP(host, vecs, off, n) memcpy(host, (const uint8_t *)(vecs) + (off), n)
#endif

/* Reads bytes of one line. */
INLINE void end_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % COPY_LINE;
	const uint8_t *line = (const uint8_t *)dev - off;
	vec v[VECS];

	if (STREAMS)
		move((uint8_t *)v, line, COPY_LINE, load_dev, store_host);
	else
		for (size_t i = off / sizeof(vec); i * sizeof(vec) < off + n; i++)
			v[i] = load_dev(line + i * sizeof(vec));
	KEEP(host, v, off, n);
}

/* Reads bytes of one vec. */
static TARGET void one_from(void *host, const void *dev, size_t n)
{
	size_t off = (uintptr_t)dev % sizeof(vec);
	vec v;

	if (copy_in_block(dev, n, sizeof(uint64_t))) {
		copy_word_from(host, dev, n);
		return;
	}
	v = load_one((const uint8_t *)dev - off);
	KEEP(host, &v, off, n);
}

INLINE void put(void *dev, const void *host, size_t n)
{
	PUT(dev, host, n);
}

static TARGET void to(void *dev, const void *host, size_t n)
{
	if (n < COPY_LINE)
		put(dev, host, n);
	else
		copy_split(dev, host, n, dev, put, lines_to);
}

static TARGET void from(void *host, const void *dev, size_t n)
{
	copy_split(host, dev, n, dev, end_from, lines_from);
}

#if !defined(STORE_LINE)
#define STORE_LINE(dev, host) move(dev, host, COPY_LINE, load_host, store_dev)
#endif

static TARGET int write_line(void *dev, const void *host)
{
	if ((uintptr_t)dev % COPY_LINE)
		return copy_write_64(dev, host);
	STORE_LINE(dev, host);
	return copy_end();
}

static int read(void *host, const void *dev, size_t n)
{
	if (copy_in_block(dev, n, sizeof(vec))) {
		copy_fence_load_begin();
		one_from(host, dev, n);
	} else {
		copy_fence_read_begin();
		from(host, dev, n);
	}
	copy_fence_read_end();
	return 0;
}

static TARGET void gather(void *lines, const void *const *devs, size_t n)
{
	uint8_t *line = lines;

	for (size_t i = 0; i < n; i++, line += COPY_LINE)
		move(line, devs[i], COPY_LINE, load_dev, store_host);
}

const struct copy_impl ROUTINE = {
	.name = NAME,
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.gather = STREAMS ? gather : NULL,
	.write = { COPY_SIZES(COPY_ENTRY) [COPY_LINE] = write_line },
};
