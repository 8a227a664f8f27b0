/* SPDX-License-Identifier: MIT */
/*
 * abi/cpp.cpp - gdrapi.h and gdrapi_ext.h in a C++98 program that links the
 * library. Every function is named, so that one which lacks C linkage or is
 * not exported fails the link.
 */
#include <string.h>

#include "gdrapi.h"
#include "gdrapi_ext.h"
#include "tap.h"

static struct tap t;

/* A pointer to a function as one to look at, never to call. */
template <typename F> static bool linked(F *f)
{
	F *volatile seen = f;

	return seen != NULL;
}

static bool all_linked()
{
	return linked(gdr_open) && linked(gdr_close) &&
	       linked(gdr_pin_buffer) && linked(gdr_pin_buffer_v2) &&
	       linked(gdr_unpin_buffer) && linked(gdr_get_callback_flag) &&
	       linked(gdr_get_info_v2) && linked(gdr_map) &&
	       linked(gdr_map_v2) && linked(gdr_unmap) &&
	       linked(gdr_copy_to_mapping) && linked(gdr_copy_from_mapping) &&
	       linked(gdr_runtime_get_version) &&
	       linked(gdr_driver_get_version) && linked(gdr_get_attribute) &&
	       linked(gdr_get_mapping_type_string) &&
	       linked(gdr_get_backend) && linked(gdr_ext_version) && linked(gdr_mem_alloc) && linked(gdr_mem_free) &&
	       linked(gdr_mem_get_device_ptr) && linked(gdr_mem_export_dmabuf) &&
	       linked(gdr_export_fd) && linked(gdr_pin_fd);
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
