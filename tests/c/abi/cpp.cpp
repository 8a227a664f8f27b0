/* SPDX-License-Identifier: MIT */
/*
 * abi/cpp.cpp - gdrapi.h and gdrapi_ext.h in a C++98 program that links the
 * library. Every function is named, so that one which lacks C linkage or is
 * not exported fails the link; and every manual page's prototype is the header's.
 */
#include <string.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"
#include "tap.h"

extern "C" {
#include "pages.h"
}

static struct tap t;

/* A pointer to a function as one to look at, never to call. */
template <typename F> static bool linked(F *f)
{
	F *volatile seen = f;

	return seen != NULL;
}

static bool all_linked()
{
	return true
#define HANDLES(name, takes) && linked(name)
#define OTHER(name) && linked(name)
#define NOTHING(name) && linked(name)
#include "functions.h"
		;
}

int main()
{
	int (*info)(gdr_t, gdr_mh_t, gdr_info_t *) = gdr_get_info;
	const char *text = NULL;
	int major = 0, minor = 0;
	gdr_mh_t none = { 0 };

	tap_ok(&t, all_linked(), "every function links");
	tap_ok(&t, info == gdr_get_info_v2, "gdr_get_info is gdr_get_info_v2");
	gdr_runtime_get_version(&major, &minor);
	tap_ok(&t, major == GDR_API_MAJOR_VERSION && minor == GDR_API_MINOR_VERSION,
	   "the library has the header's version");
	tap_ok(&t, gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, &text) == 0 &&
	   strcmp(text, "Write Combining") == 0, "the name of WC");
	tap_ok(&t, gdr_copy_to_mapping(none, &none, &none, 1) != 0,
	   "no copy through handle 0");

	return tap_done(&t);
}
