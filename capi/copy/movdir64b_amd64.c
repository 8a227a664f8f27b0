// SPDX-License-Identifier: MIT
/*
 * movdir64b_amd64.c - writes of a line by one direct store. The store goes to the device
 * as one 64-byte write, past the write-combining buffers. Reads are SSE4.1's: there is no
 * such instruction for loads.
 *
 * It is not the default. A direct store does not wait in a buffer of the CPU, so from 128
 * bytes on the caller waits for the link (docs/dataplane.md).
 */
#if defined(__x86_64__)
#include "cpu_amd64.h"
#include "parts.h"

struct line {
	uint8_t bytes[COPY_LINE];
};

static void lines_to(void *dev, const void *host, size_t n)
{
	struct line *d = dev;
	const struct line *h = host;

	/*
	 * The destination is a register operand. So the asm names the line as an output,
	 * too.
	 */
	for (; n; n -= COPY_LINE, d++, h++)
		__asm__ __volatile__("movdir64b %1, %2" : "=m"(*d) : "m"(*h), "r"(d));
}

static bool usable(void)
{
	return (cpu_leaf(7).ecx & CPU_7_ECX_MOVDIR64B) && cpu_has_sse41();
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

const struct copy_impl copy_movdir64b = {
	.name = "movdir64b",
	.usable = usable,
	.to = to,
	.from = copy_sse41_from,
	.read = copy_sse41_read,
	.gather = copy_sse41_gather,
	.write = { COPY_SIZES(COPY_ENTRY_VEC) [COPY_LINE] = write_line },
};
#endif
