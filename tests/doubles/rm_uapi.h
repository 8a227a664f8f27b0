/* SPDX-License-Identifier: MIT */
/*
 * rm_uapi.h - the requests of NVIDIA's resource manager (RM), as the simulated driver of
 * nvrm/ serves them.
 *
 * TEST DOUBLE. The simulated libcuda uses them.
 * The first part is what NVIDIA's driver has. The second part is the doubles' own.
 *
 * 1. A request is _IOWR('F', nr, struct).
 * 2. A wrong size of the struct, or a request on the wrong kind of file, gives EINVAL. (So no
 *    assertion about sizes stands here.)
 * 3. Otherwise the ioctl returns 0 and the answer is in status.
 * 4. Handles are local to a client.
 * 5. A client belongs to the file and to the process that made it. It ends with the last
 *    close of the file. A forked child that uses it gets RM_INVALID_CLIENT.
 */
#ifndef RM_UAPI_H
#define RM_UAPI_H

#include <linux/types.h>
#include <sys/ioctl.h>

#define RM_CTL_DEVICE	"/dev/nvidiactl"
#define RM_GPU_DEVICE	"/dev/nvidia"		/* and the minor number */
#define RM_UVM_DEVICE	"/dev/nvidia-uvm"

#define RM_TYPE		'F'
#define RM_IOC(nr, type) _IOWR(RM_TYPE, nr, type)

/* The NV_STATUS values that C looks at, and those that this file names. */
enum {
	RM_OK			= 0x00,
	RM_NO_RESOURCES		= 0x1a,	/* BAR1 is full */
	RM_NO_PERMISSION	= 0x1b,	/* the source is another process's */
	RM_INVALID_ARGUMENT	= 0x1f,
	RM_INVALID_CLIENT	= 0x23,	/* unknown, or of another process or file */
	RM_INVALID_DEVICE	= 0x26,
	RM_INVALID_PARENT	= 0x36,
	RM_NO_MEMORY		= 0x51,
	RM_NOT_SUPPORTED	= 0x56,
	RM_NOT_FOUND		= 0x57,	/* no such object, or no such mapping */
	RM_STATE_IN_USE		= 0x63,	/* the fd has served a MAP_MEMORY */
};

/* Classes of objects. */
enum {
	RM_CLASS_LOCKED		= 0x27,	/* the host's memory, of cuMemAllocHost; parent: a device */
	RM_CLASS_HOST		= 0x3e,	/* the host's memory; parent: a device */
	RM_CLASS_MEMORY		= 0x40,	/* of a GPU; parent: a device */
	RM_CLASS_CLIENT		= 0x41,	/* root, parent and object are 0 */
	RM_CLASS_DEVICE		= 0x80,	/* parent: the client */
	RM_CLASS_FABRIC		= 0xf8,	/* what other GPUs reach; parent: a subdevice */
	RM_CLASS_SUBDEVICE	= 0x2080,	/* params: a number, 0; parent: a device */
	RM_CLASS_PEER		= 0x503b,	/* GPUs reach each other; parent: the client */
	RM_CLASS_DEBUGGER	= 0x83de,	/* parent: the client */
};

/*
 * On RM_CTL_DEVICE. object 0: the driver chooses the handle. A device needs a file of its
 * GPU that was registered (RM_REGISTER_FD) with this control file, else it is
 * RM_INVALID_DEVICE. (In the real driver the GPU must be open.)
 */
struct rm_alloc {
	__u32 root;
	__u32 parent;
	__u32 object;		/* in, out */
	__u32 class;
	__u64 params;		/* a pointer */
	__u64 rights;
	__u32 params_size;
	__u32 flags;
	__u32 status;
	__u32 pad;
};

/* params of RM_CLASS_DEVICE */
struct rm_device_params {
	__u32 instance;		/* rm_id_info.instance */
	__u32 client_share;	/* the client itself, or 0 */
	__u32 target_client;	/* 0 */
	__u32 target_device;	/* 0 */
	__u32 flags;		/* 0 */
	__u32 pad;
	__u64 va_size;		/* 0 */
	__u64 va_start;		/* 0 */
	__u64 va_limit;		/* 0 */
	__u32 va_mode;		/* 0 to 2 */
	__u32 pad2;
};

/*
 * On RM_CTL_DEVICE. object may be the client itself. All below the object is freed, too:
 * mappings of a memory object, memory objects of a device.
 */
struct rm_free {
	__u32 root;
	__u32 parent;
	__u32 object;
	__u32 status;
};

struct rm_control {
	__u32 client;
	__u32 object;
	__u32 cmd;
	__u32 flags;
	__u64 params;		/* a pointer */
	__u32 params_size;
	__u32 status;
};

/* Commands of struct rm_control; the object of each is the client. */
#define RM_CTRL_ID_INFO		0x205	/* struct rm_id_info */
#define RM_CTRL_EXPORT_FD	0x3d05	/* struct rm_export_fd */
#define RM_CTRL_IMPORT_FD	0x3d06	/* struct rm_import_fd */
#define RM_CTRL_EXPORT_INFO	0x3d08	/* struct rm_export_info */
#define RM_CTRL_EXPORT_OBJECTS	0x3d0b	/* struct rm_export_objects */

struct rm_id_info {
	__u32 gpu_id;		/* in; unknown: RM_INVALID_ARGUMENT */
	__u32 flags;		/* out, as what follows; bit 6: ATS */
	__u32 instance;		/* for rm_device_params */
	__u32 subdevice;
	__u32 sli;
	__u32 board;
	__u32 gpu_instance;
	__s32 numa;		/* node of the GPU's memory, -1: none */
};

#define RM_FD_OBJECT		1	/* type: an RM object */

/*
 * fd is a fresh open of RM_CTL_DEVICE. The object goes into the file. Any process with
 * the file may import the object. The file keeps the memory alive.
 */
struct rm_export_fd {
	__u32 type;		/* RM_FD_OBJECT */
	__u32 device;
	__u32 parent;
	__u32 object;
	__s32 fd;
	__u32 flags;		/* 0 */
};

struct rm_import_fd {
	__s32 fd;
	__u32 type;		/* RM_FD_OBJECT */
	__u32 device;		/* of the importing client, on the memory's GPU */
	__u32 parent;		/* the same */
	__u32 object;		/* in: 0 or a free handle; out */
};

/* Before 550 without mig: 76 bytes. */
struct rm_export_info {
	__s32 fd;
	__u32 instance;		/* out, as all below */
	__u32 mig;		/* 0xffffffff: no instance */
	__u16 most;
	__u8 label[64];
};

/* As rm_export_fd, for many objects and with a label of 64 bytes. */
struct rm_export_objects {
	__s32 fd;
	__u32 device;
	__u16 most;		/* objects that the file has room for */
	__u8 label[64];
	__u32 objects[512];	/* 0: none in this place */
	__u16 n;
	__u16 index;		/* 0 */
};

/*
 * A duplicate of a memory object, in another client or the same one. The caller must be
 * the process of the source's client, else it is RM_NO_PERMISSION (RM_SHARE is the
 * exception). The parent is a device. Memory of another GPU's duplicate shows wrong bytes.
 */
struct rm_dup_object {
	__u32 client;
	__u32 parent;
	__u32 object;		/* in: 0 or a free handle; out */
	__u32 client_src;
	__u32 object_src;
	__u32 flags;
	__u32 status;
};

/*
 * On RM_CTL_DEVICE. fd is a file of device's GPU that has served no RM_MAP_MEMORY, else
 * it is RM_STATE_IN_USE. It needs no RM_REGISTER_FD. After the request mmap(length,
 * MAP_SHARED, fd, 0) gives [offset, offset + length). offset and length are whole host
 * pages. An mmap of another length fails with ENXIO, one of another offset with EINVAL.
 */
struct rm_map_memory {
	__u32 client;
	__u32 device;
	__u32 memory;
	__u32 pad;
	__u64 offset;
	__u64 length;
	__u64 linear;		/* out: the mapping's name */
	__u32 status;
	__u32 flags;		/* out: bits 16:15 the mapping, bits 25:23 the cache type */
	__s32 fd;
	__u32 pad2;
};

struct rm_unmap_memory {
	__u32 client;
	__u32 device;
	__u32 memory;
	__u32 pad;
	__u64 linear;
	__u32 status;		/* RM_NOT_FOUND: the memory or the mapping is gone */
	__u32 flags;
};

/*
 * On RM_CTL_DEVICE: an array of these, with room for every GPU at least. Entries without
 * a GPU have valid 0. The order is not that of any ordinal.
 */
struct rm_card_info {
	__u8 valid;
	__u8 pad[3];
	__u32 pci_domain;
	__u8 pci_bus;
	__u8 pci_slot;
	__u8 pci_function;
	__u8 pad2;
	__u16 pci_vendor;	/* 0x10de */
	__u16 pci_device;
	__u32 gpu_id;
	__u16 interrupt;
	__u16 pad3;
	__u64 reg_address;
	__u64 reg_size;
	__u64 fb_address;
	__u64 fb_size;
	__u32 minor;
	__u8 name[10];
	__u8 pad4[2];
};

/* On a GPU's file, once: the control file that its process works with. */
struct rm_register_fd {
	__s32 ctl_fd;
};

#define RM_DMABUF_HANDLES 128

/*
 * On a GPU's file: parts of memory objects of the caller's client, as one dma-buf.
 * Drivers before 570 have the struct without the two bytes mapping_type and allow_mmap.
 */
struct rm_dmabuf_2600 {
	__s32 fd;		/* in: -1; out */
	__u32 client;
	__u32 total_objects;
	__u32 objects;
	__u32 index;
	__u32 pad;
	__u64 total_size;
	__u32 handles[RM_DMABUF_HANDLES];
	__u64 offsets[RM_DMABUF_HANDLES];
	__u64 sizes[RM_DMABUF_HANDLES];
	__u32 status;
	__u32 pad2;
};

struct rm_dmabuf {
	__s32 fd;		/* in: -1; out */
	__u32 client;
	__u32 total_objects;
	__u32 objects;
	__u32 index;
	__u32 pad;
	__u64 total_size;
	__u8 mapping_type;	/* 0 */
	__u8 allow_mmap;	/* 1: mmap of the dma-buf works */
	__u8 pad2[2];
	__u32 handles[RM_DMABUF_HANDLES];
	__u32 pad3;
	__u64 offsets[RM_DMABUF_HANDLES];
	__u64 sizes[RM_DMABUF_HANDLES];
	__u32 status;
	__u32 pad4;
};

#define RM_FREE			RM_IOC(0x29, struct rm_free)
#define RM_CONTROL		RM_IOC(0x2a, struct rm_control)
#define RM_ALLOC		RM_IOC(0x2b, struct rm_alloc)
#define RM_DUP_OBJECT		RM_IOC(0x34, struct rm_dup_object)
#define RM_MAP_MEMORY		RM_IOC(0x4e, struct rm_map_memory)
#define RM_UNMAP_MEMORY		RM_IOC(0x4f, struct rm_unmap_memory)
#define RM_CARD_INFO_NR		200
#define RM_CARD_INFO(n)		_IOC(_IOC_READ | _IOC_WRITE, RM_TYPE, RM_CARD_INFO_NR, \
				     (n) * sizeof(struct rm_card_info))
#define RM_REGISTER_FD		RM_IOC(201, struct rm_register_fd)
#define RM_EXPORT_DMABUF	RM_IOC(217, struct rm_dmabuf)
#define RM_EXPORT_DMABUF_2600	RM_IOC(217, struct rm_dmabuf_2600)

/*
 * Requests on RM_UVM_DEVICE are plain numbers, without a size. base and length are bytes. The
 * answer is in status, an NV_STATUS.
 */
#define UVM_REGISTER_GPU_VASPACE	25	/* struct uvm_vaspace */
#define UVM_UNREGISTER_GPU_VASPACE	26	/* struct uvm_uuid: all that the GPU has mapped ends */
#define UVM_MAP_EXTERNAL_ALLOCATION	33	/* struct uvm_map, or uvm_map_535 */
#define UVM_FREE			34	/* struct uvm_range; from 590 on struct uvm_free_590 */
#define UVM_REGISTER_GPU		37	/* struct uvm_gpu */
#define UVM_UNREGISTER_GPU		38	/* struct uvm_uuid */
#define UVM_MAP_REGION			65	/* struct uvm_part: one page; UVM_FREE ends it */
#define UVM_UNMAP_EXTERNAL		66	/* struct uvm_part: one GPU's maps in it end */
#define UVM_ALLOC_SEMAPHORE_POOL	68	/* struct uvm_pool, or uvm_pool_535; UVM_FREE ends it */
#define UVM_VALIDATE_VA_RANGE		72	/* struct uvm_range */
#define UVM_CREATE_EXTERNAL_RANGE	73	/* struct uvm_range */
#define UVM_MM_INITIALIZE		75	/* struct uvm_mm, on a second file */

struct uvm_range {
	__u64 base;
	__u64 length;
	__u32 status;
	__u32 pad;
};

struct uvm_free_590 {
	__u64 base;
	__u32 status;
	__u32 pad;
};

struct uvm_part {
	__u64 base;
	__u64 length;
	__u8 uuid[16];
	__u32 status;
	__u32 pad;
};

struct uvm_attributes {
	__u8 uuid[16];		/* of the GPU that may use it, whoever has the memory */
	__u32 kinds[5];		/* 0 */
};

/* These addresses, in one range of 73, are the object from offset on. */
struct uvm_map {
	__u64 base;
	__u64 length;
	__u64 offset;
	struct uvm_attributes gpus[256];
	__u64 count;
	__s32 ctl_fd;
	__u32 client;
	__u32 object;
	__u32 status;
};

struct uvm_map_535 {
	__u64 base;
	__u64 length;
	__u64 offset;
	struct uvm_attributes gpus[32];
	__u64 count;
	__s32 ctl_fd;
	__u32 client;
	__u32 object;
	__u32 status;
};

struct uvm_pool {
	__u64 base;
	__u64 length;
	struct uvm_attributes gpus[256];
	__u64 count;
	__u32 status;
	__u32 pad;
};

struct uvm_pool_535 {
	__u64 base;
	__u64 length;
	struct uvm_attributes gpus[32];
	__u64 count;
	__u32 status;
	__u32 pad;
};

struct uvm_uuid {
	__u8 uuid[16];
	__u32 status;
};

struct uvm_vaspace {
	__u8 uuid[16];
	__s32 ctl_fd;
	__u32 client;
	__u32 vaspace;		/* here the device */
	__u32 status;
};

struct uvm_gpu {
	__u8 uuid[16];
	__u8 numa;		/* out */
	__u8 pad[3];
	__s32 node;		/* out */
	__s32 ctl_fd;
	__u32 client;
	__u32 part;		/* 0 */
	__u32 status;
};

struct uvm_mm {
	__s32 uvm_fd;		/* the first file */
	__u32 status;
};

/*
 * The doubles' own.
 *
 * The simulated libcuda gets memory by RM_ALLOC of RM_CLASS_MEMORY below its device, and the
 * host's by the other classes, with struct rm_sim_memory. It frees memory by RM_FREE. It reads and writes memory by
 * RM_MAP_MEMORY and mmap, as other programs do. Freed memory stays while a duplicate, an
 * exported fd or a dma-buf of it exists.
 *
 * CUDA's ordinals are the GPUs of RM_CARD_INFO in the order of their PCI addresses.
 */
struct rm_sim_memory {
	__u64 size;		/* bytes; whole host pages, else RM_INVALID_ARGUMENT */
	__u64 flags;		/* 0 */
};

/*
 * On RM_CTL_DEVICE: allows every process to duplicate a memory object. libcuda does this
 * for CUDA IPC. (The real request 0x35 has more fields.)
 */
struct rm_share {
	__u32 client;
	__u32 object;
	__u32 policy[3];	/* 0 */
	__u32 status;
};

#define RM_SHARE		RM_IOC(0x35, struct rm_share)

/*
 * On RM_CTL_DEVICE: what a memory object of the client is, or one that another process shares.
 * libcuda imports it without knowing its kind. (The real driver has RM_CONTROL commands for
 * this.)
 */
struct rm_sim_info {
	__u32 client;
	__u32 object;
	__u64 size;		/* out */
	__u32 status;
	__u32 gpu_id;		/* out */
};

#define RM_SIM_INFO		RM_IOC(0xf3, struct rm_sim_info)

/*
 * The driver's memory of a GPU, on RM_CTL_DEVICE. cuMemGetInfo answers it.
 * Memory that will be freed later is not counted.
 */
struct rm_sim_stats {
	__u32 gpu_id;		/* in */
	__u32 status;
	__u64 total;		/* bytes of device memory */
	__u64 used;
};

#define RM_SIM_STATS		RM_IOC(0xf0, struct rm_sim_stats)

/*
 * The double's own fds cannot be mapped.
 *
 * RM_SIM_MMAP, on a GPU's file or a dma-buf: the simulated libcuda asks what mmap(length,
 * fd, offset) must map. It closes out_fd afterwards. If the process may have no more
 * descriptors, out_fd is fd itself, and fd's file is gone. ENOTTY: the file is not this
 * driver's. Another errno: mmap fails with it. Where address is not 0 mmap maps nothing and
 * answers that address, as drivers before 595 do on a lost GPU.
 *
 * RM_SIM_MAPPED, on a GPU's file: the address at which mmap has put it. The driver takes
 * the mapping away when its object is freed.
 *
 * RM_SIM_HOLDS, on any of the driver's files: 0 if the file keeps memory alive, as a
 * dma-buf and an exported object do, else ENODATA. ENOTTY: a dma-buf of the kernel's.
 *
 * RM_SIM_CUDA, on RM_CTL_DEVICE, marks a file as the simulated libcuda's. NVRM_SIM_FAIL
 * does not fail its requests.
 *
 * RM_SIM_LIVE, on RM_CTL_DEVICE: the memory objects and mappings that the caller's
 * process has by unmarked files. Leak tests read it.
 */
struct rm_sim_mmap {
	__u64 length;		/* in */
	__u64 offset;		/* in: mmap's; out: for out_fd */
	__s32 out_fd;
	__u32 address;		/* out */
};

#define RM_SIM_MMAP		RM_IOC(0xf1, struct rm_sim_mmap)
struct rm_sim_mapped {
	__u64 addr;
};

#define RM_SIM_MAPPED		RM_IOC(0xf7, struct rm_sim_mapped)

#define RM_SIM_CUDA		RM_IOC(0xf2, __u32)	/* 0 */
#define RM_SIM_HOLDS		RM_IOC(0xf4, __u32)	/* 0 */

/*
 * RM_SIM_FAIL, on RM_CTL_DEVICE: makes a rule of NVRM_SIM_FAIL while the program runs.
 * result 0 drops the rules of the name. nth 0 is every call.
 */
struct rm_sim_fail {
	char name[32];
	__s32 result;
	__u32 nth;
};

#define RM_SIM_FAIL		RM_IOC(0xf6, struct rm_sim_fail)

struct rm_sim_live {
	__u32 objects;
	__u32 mappings;
};

#define RM_SIM_LIVE		RM_IOC(0xf5, struct rm_sim_live)

#endif
