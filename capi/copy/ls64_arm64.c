// SPDX-License-Identifier: MIT
/*
 * ls64_arm64.c - a line by one ST64B or LD64B (FEAT_LS64).
 *
 * The two instructions are written as their encodings, with fixed registers. So the
 * compiler and the assembler need not know them, and the file needs no flag of its own.
 *
 * It is never the default, even if usable() says yes. The memory must take 64-byte
 * single-copy accesses as well. Memory that does not take them answers with a fault. A
 * library must not risk that unasked.
 */
#if defined(__aarch64__)
#include <string.h>
#include <sys/auxv.h>

#include "parts.h"

#define LINE_WORDS (COPY_LINE / sizeof(uint64_t))

/* A whole line as one operand. */
struct line {
	uint64_t word[LINE_WORDS];
} __attribute__((may_alias));

static inline void store_line(struct line *dev, const struct line *v)
{
	register uint64_t r0 __asm__("x0");
	register uint64_t r1 __asm__("x1");
	register uint64_t r2 __asm__("x2");
	register uint64_t r3 __asm__("x3");
	register uint64_t r4 __asm__("x4");
	register uint64_t r5 __asm__("x5");
	register uint64_t r6 __asm__("x6");
	register uint64_t r7 __asm__("x7");
	register struct line *base __asm__("x8") = dev;

	r0 = v->word[0];
	r1 = v->word[1];
	r2 = v->word[2];
	r3 = v->word[3];
	r4 = v->word[4];
	r5 = v->word[5];
	r6 = v->word[6];
	r7 = v->word[7];
	/* st64b x0, [x8] */
	__asm__ __volatile__(".inst 0xf83f9100"
			     : "=m"(*dev)
			     : "r"(r0), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5), "r"(r6),
			       "r"(r7), "r"(base));
}

static inline void load_line(struct line *v, const struct line *dev)
{
	register uint64_t r0 __asm__("x0");
	register uint64_t r1 __asm__("x1");
	register uint64_t r2 __asm__("x2");
	register uint64_t r3 __asm__("x3");
	register uint64_t r4 __asm__("x4");
	register uint64_t r5 __asm__("x5");
	register uint64_t r6 __asm__("x6");
	register uint64_t r7 __asm__("x7");
	register const struct line *base __asm__("x8") = dev;

	/* ld64b x0, [x8] */
	__asm__ __volatile__(".inst 0xf83fd100"
			     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3), "=r"(r4), "=r"(r5),
			       "=r"(r6), "=r"(r7)
			     : "r"(base), "m"(*dev));
	v->word[0] = r0;
	v->word[1] = r1;
	v->word[2] = r2;
	v->word[3] = r3;
	v->word[4] = r4;
	v->word[5] = r5;
	v->word[6] = r6;
	v->word[7] = r7;
}

static void lines_to(void *dev, const void *host, size_t n)
{
	struct line *d = dev;
	const uint8_t *h = host;

	for (; n; n -= COPY_LINE, d++, h += COPY_LINE) {
		struct line v;

		memcpy(&v, h, sizeof(v));
		store_line(d, &v);
	}
}

static void lines_from(void *host, const void *dev, size_t n)
{
	const struct line *d = dev;
	uint8_t *h = host;

	for (; n; n -= COPY_LINE, d++, h += COPY_LINE) {
		struct line v;

		load_line(&v, d);
		memcpy(h, &v, sizeof(v));
	}
}

/*
 * The kernel lets user space read the identification registers, and clears the fields of
 * features that it has not enabled. So field LS64 of ID_AA64ISAR1_EL1 is set only if the
 * CPU has the instructions and the kernel has enabled them.
 */
static bool usable(void)
{
	uint64_t isar1;

	if (!(getauxval(AT_HWCAP) & (1ul << 11)))	/* HWCAP_CPUID */
		return false;
	__asm__("mrs %0, ID_AA64ISAR1_EL1" : "=r"(isar1));
	return isar1 >> 60;
}

static int write_line(_Atomic uint64_t *busy, void *dev, const void *host)
{
	if (!copy_at_line(dev))
		return copy_write_vec_64(busy, dev, host);
	lines_to(dev, host, COPY_LINE);
	return copy_end(busy);
}

static void to(void *dev, const void *host, size_t n)
{
	copy_split_to(dev, host, n, copy_put_vec, lines_to);
}

static void from(void *host, const void *dev, size_t n)
{
	copy_split_from(host, dev, n, copy_small_from_vec, lines_from);
}

static int read(void *host, const void *dev, size_t n, _Atomic uint64_t *busy)
{
	return copy_read_plain(host, dev, n, busy, copy_small_from_vec, lines_from, from);
}

const struct copy_impl copy_ls64 = {
	.name = "ls64",
	.usable = usable,
	.to = to,
	.from = from,
	.read = read,
	.write = { COPY_SIZES(COPY_ENTRY_VEC) [COPY_LINE] = write_line },
};
#endif
