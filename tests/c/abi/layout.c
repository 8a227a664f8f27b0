/* SPDX-License-Identifier: MIT */
/*
 * abi/layout.c - the sizes, offsets, values and prototypes of the headers.
 *
 * The compiler checks each of them; the program prints the ones that old
 * binaries depend on. It uses no function of the library.
 */
#include <stddef.h>

#include "gdrapi.h"

/* gdrapi.h brings no name of a CPU; gdrconfig.h has the machine's own alone, empty. */
#if defined(GDRAPI_X86) || defined(GDRAPI_ARM64) || defined(GDRAPI_POWER) || defined(GDRAPI_ARCH)
#error "gdrapi.h names a CPU"
#endif
#include "gdrconfig.h"
#if defined(GDRAPI_X86) + defined(GDRAPI_ARM64) + defined(GDRAPI_POWER) != 1 || defined(GDRAPI_ARCH)
#error "gdrconfig.h does not name one CPU"
#endif

#include "gdrapi_ext.h"
#include "tap.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#ifdef __x86_64__
_Static_assert(sizeof(TEXT(GDRAPI_X86)) == 1, "an empty name");
#elif defined(__aarch64__)
_Static_assert(sizeof(TEXT(GDRAPI_ARM64)) == 1, "an empty name");
#else
_Static_assert(sizeof(TEXT(GDRAPI_POWER)) == 1, "an empty name");
#endif

_Static_assert(GDR_API_VERSION == 0x20006, "API version");
_Static_assert(GDRAPI_EXT_VERSION == 1, "version of the extensions");
_Static_assert(MINIMUM_GDRDRV_VERSION == 0x20000, "oldest gdrdrv");
_Static_assert(MINOR_VERSION_MASK == 0xffff, "minor version mask");
_Static_assert(GPU_PAGE_SIZE == 65536 && GPU_PAGE_SHIFT == 16, "GPU page");
_Static_assert(GPU_PAGE_MASK == 0xffffffffffff0000UL, "GPU page mask");
_Static_assert(GPU_PAGE_OFFSET == 0xffff, "offset in a GPU page");

_Static_assert(sizeof(gdr_t) == 8, "gdr_t is a pointer");
_Static_assert(sizeof(gdr_mh_t) == 8, "gdr_mh_t fits a register");
_Static_assert(sizeof(gdr_mem_t) == 8, "gdr_mem_t fits a register");
_Static_assert(sizeof(gdr_cache_t) == 8, "gdr_cache_t fits a register");
_Static_assert(sizeof(gdr_piece_t) == 32, "a piece");
_Static_assert(offsetof(gdr_piece_t, handle) == 0 && offsetof(gdr_piece_t, map_d_ptr) == 8 &&
	       offsetof(gdr_piece_t, h_ptr) == 16 && offsetof(gdr_piece_t, size) == 24, "a piece");
_Static_assert(sizeof(gdr_attr_t) == 4, "enums are ints");
_Static_assert(sizeof(gdr_info_t) == sizeof(gdr_info_v2_t), "gdr_info_t is v2");

/* The manual pages' prototypes: the compiler refuses one that differs from the header's. */
#include "pages.h"

/* Where the compiler puts the two bits cannot be asked for by offsetof. */
static size_t byte_of_bits(gdr_info_v2_t info)
{
	const unsigned char *b = (const unsigned char *)&info;
	size_t i;

	for (i = 0; i < sizeof(info); i++)
		if (b[i])
			return i;
	return i;
}

int main(void)
{
#define VALUE(name, want) { #name, name, want }
	static const struct {
		const char *what;
		long got, want;
	} rows[] = {
		VALUE(sizeof(gdr_info_v2_t), 48),
		VALUE(offsetof(gdr_info_v2_t, va), 0),
		VALUE(offsetof(gdr_info_v2_t, mapped_size), 8),
		VALUE(offsetof(gdr_info_v2_t, page_size), 16),
		VALUE(offsetof(gdr_info_v2_t, tm_cycles), 24),
		VALUE(offsetof(gdr_info_v2_t, cycles_per_ms), 32),
		VALUE(offsetof(gdr_info_v2_t, mapping_type), 40),
		VALUE(GDR_PIN_FLAG_DEFAULT, 0),
		VALUE(GDR_PIN_FLAG_FORCE_PCIE, 1),
		VALUE(GDR_MAPPING_TYPE_NONE, 0),
		VALUE(GDR_MAPPING_TYPE_WC, 1),
		VALUE(GDR_MAPPING_TYPE_CACHING, 2),
		VALUE(GDR_MAPPING_TYPE_DEVICE, 3),
		VALUE(GDR_MAPPING_TYPE_MAX, 4),
		VALUE(GDR_MAP_FLAG_DEFAULT, 0),
		VALUE(GDR_MAP_FLAG_REQ_WC_MAPPING, 1),
		VALUE(GDR_MAP_FLAG_REQ_CACHE_MAPPING, 2),
		VALUE(GDR_MAP_FLAG_REQ_DEVICE_MAPPING, 3),
		VALUE(GDR_ATTR_USE_PERSISTENT_MAPPING, 1),
		VALUE(GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, 2),
		VALUE(GDR_ATTR_USING_DMA_BUF_MMAP, 3),
		VALUE(GDR_ATTR_MAX, 4),
	};
	gdr_info_v2_t mapped = { .mapped = 1 }, wc = { .wc_mapping = 1 };
	struct tap t = { 0 };
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		tap_is(&t, rows[i].got, rows[i].want, rows[i].what);
	tap_is(&t, byte_of_bits(mapped), 36, "byte of mapped");
	tap_is(&t, byte_of_bits(wc), 36, "byte of wc_mapping");
	tap_is(&t, ((unsigned char *)&mapped)[36], 1, "bit of mapped");
	tap_is(&t, ((unsigned char *)&wc)[36], 2, "bit of wc_mapping");
	return tap_done(&t);
}
