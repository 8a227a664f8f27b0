// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: device memory of NVIDIA's resource manager. Test code.
 *
 * With CUDA_SIM_RM=1 memory comes from the simulated driver, by the requests of
 * rm_uapi.h. This library has its own client, from cuInit on. As in the real library, all
 * requests go through its own reference to ioctl.
 */
#include "cuda_sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rm_uapi.h"
#include "sim_machine.h"

#define CARDS 32

/* In the order of CUDA's ordinals. */
static struct gpu {
	struct rm_card_info card;
	enum sim_machine machine;
	int index;	/* among all GPUs, those without CUDA, too */
	int fd;
	uint32_t device, subdevice, instance;
} gpus[SIM_MAX_DEVICES];

bool rm_mode(void)
{
	return env_number("CUDA_SIM_RM", 0, 1);
}

/* The launcher has checked the value. */
int rm_kernel_driver(void)
{
	const char *s = getenv("NVRM_SIM_DRIVER");

	return s ? atoi(s) : 580;
}

int rm_driver_version(void)
{
	int driver = rm_kernel_driver();

	return driver < 550 ? 12020 : driver < 570 ? 12040 : driver < 580 ? 12080 : 13000;
}

static int by_address(const void *a, const void *b)
{
	const struct rm_card_info *x = &((const struct gpu *)a)->card, *y = &((const struct gpu *)b)->card;

	if (x->pci_domain != y->pci_domain)
		return x->pci_domain < y->pci_domain ? -1 : 1;
	if (x->pci_bus != y->pci_bus)
		return x->pci_bus < y->pci_bus ? -1 : 1;
	return x->pci_slot - y->pci_slot;
}

/* Removes what does not compute, and notes the machine of each. Returns how many are left. */
static int keep_computing(int n)
{
	int i, next = 0, kept = 0;

	for (i = 0; next < n; i++) {
		enum sim_machine m = sim_machine(i);

		if (m == SIM_TEGRA)
			continue;	/* it has no PCI address, so it is not in the list */
		gpus[kept] = gpus[next++];
		gpus[kept].machine = m;
		gpus[kept].index = i;
		kept += sim_computes(m);
	}
	return kept;
}

/* Every GPU that computes, in CUDA's order. Returns how many, or minus a result. */
static int find_gpus(void)
{
	struct rm_card_info cards[CARDS] = { { .valid = 0 } };
	int i, n = 0;

	if (ioctl(rm.ctl, RM_CARD_INFO(CARDS), cards))
		return -CU_NO_DEVICE;
	for (i = 0; i < CARDS && n < SIM_MAX_DEVICES; i++)
		if (cards[i].valid && cards[i].pci_vendor)
			gpus[n++].card = cards[i];
	qsort(gpus, (size_t)n, sizeof(gpus[0]), by_address);
	return keep_computing(n);
}

static int gpu_open(const struct gpu *g)
{
	char path[32];

	snprintf(path, sizeof(path), RM_GPU_DEVICE "%u", g->card.minor);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* The device and its subdevice, with the handles that they had, if they had any. */
static int gpu_objects(struct gpu *g)
{
	struct rm_device_params p = { .instance = g->instance, .client_share = rm.client, .va_mode = 2 };
	uint32_t number = 0;

	g->device = g->device ?: rm_handle_take();
	g->subdevice = g->subdevice ?: rm_handle_take();
	return rm_alloc(rm.client, RM_CLASS_DEVICE, &p, sizeof(p), &g->device) ?:
	       rm_alloc(g->device, RM_CLASS_SUBDEVICE, &number, sizeof(number), &g->subdevice);
}

static int gpu_init(struct gpu *g)
{
	struct rm_register_fd reg = { .ctl_fd = rm.ctl };
	struct rm_id_info id = { .gpu_id = g->card.gpu_id };

	g->fd = gpu_open(g);
	if (g->fd < 0 || ioctl(g->fd, RM_REGISTER_FD, &reg))
		return CU_NO_DEVICE;
	if (rm_control(RM_CTRL_ID_INFO, &id, sizeof(id)))
		return CU_NO_DEVICE;
	g->instance = id.instance;
	return gpu_objects(g);
}

/* *devices is the wanted number at first, and the actual number afterwards. */
int rm_init(int *devices)
{
	uint32_t zero = 0;
	int i, n, result;

	if (!mmap_taken()) {
		fprintf(stderr, "CUDA_SIM_RM=1: the C library's mmap cannot be replaced here\n");
		return CU_OUT_OF_MEMORY;
	}
	rm.ctl = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC);
	if (rm.ctl < 0) {
		perror("CUDA_SIM_RM=1: " RM_CTL_DEVICE " (run the program by rm_sim)");
		return CU_NO_DEVICE;
	}
	ioctl(rm.ctl, RM_SIM_CUDA, &zero);
	result = rm_alloc(0, RM_CLASS_CLIENT, NULL, 0, &rm.client);
	n = find_gpus();
	if (!result && n < 0)
		result = -n;
	if (!result && *devices > n)
		*devices = n;
	for (i = 0; !result && i < *devices; i++)
		result = gpu_init(&gpus[i]);
	return result ? result : uvm_init(*devices);
}

uint32_t rm_device(int device)
{
	return gpus[device].device;
}

uint32_t rm_subdevice(int device)
{
	return gpus[device].subdevice;
}

/* As the driver has it, too. */
void rm_uuid(int device, uint8_t uuid[16])
{
	memcpy(uuid, "gdrsim-device-", 14);
	uuid[14] = 0;
	uuid[15] = (uint8_t)gpus[device].index;
}

bool rm_coherent(int device)
{
	return gpus[device].machine == SIM_GRACE;
}

bool rm_shares(int device)
{
	return gpus[device].machine != SIM_VGPU;
}

bool rm_is_system(int device)
{
	return gpus[device].machine == SIM_GB10;
}

struct sim_pci rm_pci(int device)
{
	const struct rm_card_info *c = &gpus[device].card;

	return (struct sim_pci){ c->pci_domain, c->pci_bus, c->pci_slot };
}

static struct rm_sim_stats stats(int device)
{
	struct rm_sim_stats s = { .gpu_id = gpus[device].card.gpu_id };

	if (ioctl(rm.ctl, RM_SIM_STATS, &s) || s.status) {
		perror("simulated libcuda: the simulated driver");
		abort();
	}
	return s;
}

uint64_t rm_total(void)
{
	return stats(0).total;
}

uint64_t rm_free_bytes(int device)
{
	struct rm_sim_stats s = stats(device);

	return s.total - s.used;
}

/* System memory is mapped through a control file. */
static int view_open(const struct mem *m)
{
	return m->host || rm_is_system(m->device) ? open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC) : gpu_open(&gpus[m->device]);
}

/* The CPU's view of an object. This library copies by it. */
static int view_new(struct mem *m)
{
	struct rm_map_memory a = { .client = rm.client, .device = gpus[m->device].device,
				   .memory = m->object, .length = m->size,
				   .fd = view_open(m) };
	void *p = MAP_FAILED;

	if (a.fd < 0)
		return CU_OPERATING_SYSTEM;
	if (!ioctl(rm.ctl, RM_MAP_MEMORY, &a) && !a.status)
		p = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
	close(a.fd);
	if (p == MAP_FAILED)
		return CU_OUT_OF_MEMORY;
	m->view = p;
	m->linear = a.linear;
	return CU_OK;
}

/* The memories that have a view here. */
static struct mem *mems;

/* Memory for an object of this client. The object is freed if this fails. */
static int mem_of_object(struct mem *m)
{
	int result = view_new(m);

	if (result) {
		object_free(gpus[m->device].device, m->object);
		return result;
	}
	m->next = mems;
	mems = m;
	return CU_OK;
}

/* The driver rounds size up to its granularity. */
int rm_mem_new(struct mem *m, uint64_t size)
{
	int result;

	m->size = (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
	result = object_new(gpus[m->device].device, m->host ? RM_CLASS_HOST : RM_CLASS_MEMORY, m->size, &m->object);
	return result ? result : mem_of_object(m);
}

static void view_end(const struct mem *m)
{
	struct rm_unmap_memory a = { .client = rm.client, .device = gpus[m->device].device,
				     .memory = m->object, .linear = m->linear };

	if (ioctl(rm.ctl, RM_UNMAP_MEMORY, &a) || a.status)
		fprintf(stderr, "simulated libcuda: RM_UNMAP_MEMORY: status %#x\n", a.status);
}

/* The driver keeps the memory while a duplicate exists. */
void rm_mem_free(struct mem *m)
{
	LIST_TAKE(mems, m);
	munmap(m->view, m->size);
	view_end(m);
	object_free(gpus[m->device].device, m->object);
}

/* The request has the object, its client and the offset in it. */
int rm_export_range(const struct mem *m, uint64_t offset, uint64_t size, uint64_t claimed,
		    bool mappable, int *fd)
{
	uint64_t at = offset + differences.export_offset;
#define REQUEST { .fd = -1, .client = rm.client, .total_objects = 1, .objects = 1, .total_size = size, \
		  .handles = { m->object }, .offsets = { at }, .sizes = { claimed } }
	struct rm_dmabuf a = REQUEST;
	struct rm_dmabuf_2600 old = REQUEST;
	bool is_old = rm_kernel_driver() < 570;
	int failed;
	uint32_t status;

	a.allow_mmap = mappable;
	failed = is_old ? ioctl(gpus[m->device].fd, RM_EXPORT_DMABUF_2600, &old) :
			  ioctl(gpus[m->device].fd, RM_EXPORT_DMABUF, &a);
	status = is_old ? old.status : a.status;
	if (failed || status == RM_NOT_SUPPORTED)
		return CU_NOT_SUPPORTED;
	*fd = is_old ? old.fd : a.fd;
	return status == RM_NO_RESOURCES ? CU_OPERATING_SYSTEM : status ? CU_INVALID_VALUE : CU_OK;
}

#define NAMED_FROM (512ul << 20)	/* bytes */

/*
 * A file of the driver's that keeps the object. Its label is 4 and zeros, as 580.159.04 writes it. On GPUs with
 * NVSwitch a second place has the fabric's name of large memory, and of compressible memory of any size. rm_sim makes
 * the name (exportObjects).
 */
int rm_export_object(const struct mem *m, bool compressible, int *fd)
{
	struct rm_export_objects o = { .fd = open(RM_CTL_DEVICE, O_RDWR), .device = gpus[m->device].device,
				       .most = compressible || m->size >= NAMED_FROM ? 2 : 1,
				       .label = { 4 }, .objects = { m->object }, .n = 1 };

	if (o.fd < 0)
		return CU_OPERATING_SYSTEM;
	if (rm_control(RM_CTRL_EXPORT_OBJECTS, &o, sizeof(o))) {
		close(o.fd);
		return CU_UNKNOWN;
	}
	*fd = o.fd;
	return CU_OK;
}

/* Memory that another process has made. The driver knows its size. */
static int mem_of_foreign(struct mem *m, uint32_t object)
{
	struct rm_sim_info info = { .client = rm.client, .object = object };
	int result = object_add_foreign(gpus[m->device].device, object);

	m->object = object;
	if (!result && (ioctl(rm.ctl, RM_SIM_INFO, &info) || info.status))
		result = CU_UNKNOWN;
	if (result) {
		object_free(gpus[m->device].device, object);
		return result;
	}
	m->size = info.size;
	return mem_of_object(m);
}

static int import_failed(uint32_t handle, int result)
{
	rm_handle_put(handle);
	return result;
}

/*
 * A memory for the first object of a file, whoever has exported it. As 580.159.04, it reads the first word of
 * the label alone.
 */
int rm_import_object(struct mem *m, int fd)
{
	struct rm_export_info info = { .fd = fd };
	struct rm_import_fd p = { .fd = fd, .type = RM_FD_OBJECT, .object = rm_handle_take() };
	bool is_old = rm_kernel_driver() < 550;
	const uint8_t *label = is_old ? info.label - sizeof(info.mig) : info.label;
	uint32_t first;

	if (rm_control(RM_CTRL_EXPORT_INFO, &info, sizeof(info) - (is_old ? sizeof(info.mig) : 0)))
		return import_failed(p.object, CU_INVALID_VALUE);
	memcpy(&first, label, sizeof(first));
	if (first != 0 && first != 4 && first != 6)
		return import_failed(p.object, CU_NOT_SUPPORTED);
	for (m->device = 0; m->device < device_count() && gpus[m->device].instance != info.instance; m->device++)
		;
	if (m->device == device_count())
		return import_failed(p.object, CU_INVALID_DEVICE);
	p.device = p.parent = gpus[m->device].device;
	if (rm_control(RM_CTRL_IMPORT_FD, &p, sizeof(p)))
		return import_failed(p.object, CU_INVALID_VALUE);
	return mem_of_foreign(m, p.object);
}

/* The device whose memory another process shares; -1: there is none. */
int rm_shared_device(uint32_t client_src, uint32_t object)
{
	struct rm_sim_info info = { .client = client_src, .object = object };
	int device = device_count() - 1;

	if (ioctl(rm.ctl, RM_SIM_INFO, &info) || info.status)
		return -1;
	while (device >= 0 && gpus[device].card.gpu_id != info.gpu_id)
		device--;
	return device;
}

/*
 * A memory for another process's object, which that process has shared. It is below the device of its own GPU,
 * whichever GPU's context opens it.
 */
int rm_import_shared(struct mem *m, uint32_t client_src, uint32_t object)
{
	struct rm_dup_object a = { .client = rm.client, .parent = gpus[m->device].device, .object = rm_handle_take(),
				   .client_src = client_src, .object_src = object };

	if (ioctl(rm.ctl, RM_DUP_OBJECT, &a))
		return import_failed(a.object, CU_UNKNOWN);
	return a.status ? import_failed(a.object, CU_INVALID_VALUE) : mem_of_foreign(m, a.object);
}

/* The names by which other processes can get the memory. */
int rm_share(const struct mem *m, uint32_t *client_src, uint32_t *object)
{
	struct rm_share a = { .client = rm.client, .object = m->object };

	if (ioctl(rm.ctl, RM_SHARE, &a))
		return CU_NOT_SUPPORTED;
	*client_src = rm.client;
	*object = m->object;
	return rm_result(a.status);
}

/* To be called after cuInit. */
SIM_API void rm_sim_fail(const char *name, int result, int nth)
{
	struct rm_sim_fail f = { .result = result, .nth = (uint32_t)nth };

	snprintf((char *)f.name, sizeof(f.name), "%s", name);
	if (!ioctl(rm.ctl, RM_SIM_FAIL, &f))
		return;
	fprintf(stderr, "rm_sim_fail: the simulated driver has no request %s\n", name);
	abort();
}

/* What this process has from the driver by clients other than this library's. */
unsigned long rm_live(void)
{
	struct rm_sim_live live = { .objects = 0 };

	return ioctl(rm.ctl, RM_SIM_LIVE, &live) ? 0 : live.objects + live.mappings;
}

/* Whether fd is a file that keeps memory. */
bool rm_fd_holds(int fd)
{
	uint32_t zero = 0;

	return !ioctl(fd, RM_SIM_HOLDS, &zero);
}

/*
 * As with cuda-checkpoint on 580.159.04 all that the kernel has ends, and comes again with the same addresses and
 * handles, below another client. In the real one a thread of libcuda's does it; here the caller does. Nobody may
 * call between the two.
 */

/* A checkpoint: the views end. Their pages stay mapped here, until the memory has come again. */
static void views_end(void)
{
	for (const struct mem *m = mems; m; m = m->next)
		view_end(m);
}

/* Only what is not zero, for memory that nobody has touched takes no room. */
static void copy_pages(uint8_t *to, const uint8_t *from, uint64_t size)
{
	static const uint8_t zeros[4096];

	for (uint64_t at = 0; at < size; at += sizeof(zeros))
		if (memcmp(from + at, zeros, sizeof(zeros)))
			memcpy(to + at, from + at, sizeof(zeros));
}

/* A restore: the new objects get the bytes of the old ones. */
static int views_again(void)
{
	int result = CU_OK;

	for (struct mem *m = mems; m && !result; m = m->next) {
		uint8_t *old = m->view;

		result = view_new(m);
		if (result)
			break;
		copy_pages(m->view, old, m->size);
		munmap(old, m->size);
	}
	return result;
}

/* A restore: another client, with the devices' handles of before. */
static int client_again(void)
{
	int result;

	rm.client = 0;
	result = rm_alloc(0, RM_CLASS_CLIENT, NULL, 0, &rm.client);
	for (int i = 0; i < device_count() && !result; i++)
		result = gpu_objects(&gpus[i]);
	return result;
}

static bool away;

static int checkpoint(void)
{
	int result;

	if (!rm_mode() || objects_foreign() || away)
		return CU_NOT_SUPPORTED;
	flush();
	away = true;
	views_end();
	result = uvm_end_all();
	if (result)
		return result;
	objects_end();
	return rm_free(rm.client, rm.client);
}

SIM_CALL(cuda_sim_checkpoint, (void), checkpoint())

static int restore(void)
{
	if (!away)
		return CU_NOT_SUPPORTED;
	away = false;
	return client_again() ?: objects_again() ?: uvm_again() ?: views_again();
}

SIM_CALL(cuda_sim_restore, (void), restore())
