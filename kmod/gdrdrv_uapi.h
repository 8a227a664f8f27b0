/* SPDX-License-Identifier: (GPL-2.0 OR MIT) */
/*
 * gdrdrv_uapi.h - the interface between user space and /dev/gdrdrv.
 *
 * This is the published ABI of gdrdrv 2.6. Old binaries contain the numbers
 * below, so no number may ever change. Most request codes contain the size of a
 * pointer instead of the size of the struct. Old binaries use these codes too.
 */
#ifndef GDRDRV_UAPI_H
#define GDRDRV_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define GDRDRV_STRING "gdrdrv"

#define GDRDRV_MAJOR_VERSION 2
#define GDRDRV_MINOR_VERSION 6
#define GDRDRV_VERSION ((GDRDRV_MAJOR_VERSION << 16) | GDRDRV_MINOR_VERSION)
/* The oldest user-space API that this driver still serves. */
#define GDRDRV_MINIMUM_API_VERSION (2 << 16)

/* A GPU page: pinnings begin and end on its boundary. */
#define GDRDRV_GPU_PAGE_SHIFT 16
#define GDRDRV_GPU_PAGE_SIZE (1ULL << GDRDRV_GPU_PAGE_SHIFT)

/* A handle times the host's page size is the offset to give to mmap. */
typedef __u64 gdrdrv_handle_t;

enum gdrdrv_mapping_type {
	GDRDRV_MAPPING_NONE = 0,
	GDRDRV_MAPPING_WC = 1,
	GDRDRV_MAPPING_CACHING = 2,
	GDRDRV_MAPPING_DEVICE = 3,
};

enum gdrdrv_attr {
	GDRDRV_ATTR_PERSISTENT = 1,
	GDRDRV_ATTR_FORCE_PCIE = 2,
};

#define GDRDRV_PIN_FORCE_PCIE 1U

struct gdrdrv_pin {
	__u64 addr;
	__u64 size;
	__u64 p2p_token;
	__u32 va_space;
	__u32 pad;
	__u64 handle;		/* out */
};

struct gdrdrv_unpin {
	__u64 handle;
};

struct gdrdrv_cb_flag {
	__u64 handle;
	__u32 flag;		/* out: 1 once the GPU driver revoked the pages */
	__u32 pad;
};

struct gdrdrv_info {
	__u64 handle;
	__u64 va;
	__u64 mapped_size;
	__u32 page_size;
	__u32 tsc_khz;
	__u64 tm_cycles;
	__u32 mapped;
	__u32 wc_mapping;
};

struct gdrdrv_info_v2 {
	__u64 handle;
	__u64 va;
	__u64 mapped_size;
	__u32 page_size;
	__u32 tsc_khz;
	__u64 tm_cycles;
	__u32 mapping_type;
	__u32 pad;
};

struct gdrdrv_get_attr {
	__u32 attr;
	__u32 val;		/* out */
};

struct gdrdrv_pin_v2 {
	__u64 addr;
	__u64 size;
	__u32 flags;
	__u32 pad;
	__u64 handle;		/* out */
};

struct gdrdrv_req_type {
	__u64 handle;
	__u32 type;
	__u32 pad;
};

struct gdrdrv_version {
	__u32 driver;		/* out */
	__u32 minimum_api;	/* out */
};

#define GDRDRV_IOC 0xDA
#define GDRDRV_IOC_PIN _IOWR(GDRDRV_IOC, 1, struct gdrdrv_pin)
#define GDRDRV_IOC_UNPIN _IOWR(GDRDRV_IOC, 2, void *)
#define GDRDRV_IOC_CB_FLAG _IOWR(GDRDRV_IOC, 3, void *)
#define GDRDRV_IOC_INFO _IOWR(GDRDRV_IOC, 4, void *)
#define GDRDRV_IOC_INFO_V2 _IOWR(GDRDRV_IOC, 5, void *)
#define GDRDRV_IOC_ATTR _IOWR(GDRDRV_IOC, 6, void *)
#define GDRDRV_IOC_PIN_V2 _IOWR(GDRDRV_IOC, 7, struct gdrdrv_pin_v2)
#define GDRDRV_IOC_REQ_TYPE _IOWR(GDRDRV_IOC, 8, void *)
#define GDRDRV_IOC_VERSION _IOWR(GDRDRV_IOC, 255, void *)

#endif
