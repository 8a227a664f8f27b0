// SPDX-License-Identifier: MIT
/* Simulated driver: the requests of rm_uapi.h. Test code. */
#include "rm_sim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VERSION_FORMAT "%u.159.04"

/* The client that the caller may use, by this file; or NULL. */
struct rm_client *own_client(const struct rm_caller *c, uint32_t handle)
{
	struct rm_client *client = client_find(handle);

	return client && client->file == c->file && caller_is(c, client->process) ? client : NULL;
}

static struct rm_object *find_device(const struct rm_client *client, uint32_t handle)
{
	struct rm_object *o = object_find(client, handle);

	return o && !o->memory && !o->confidential ? o : NULL;
}

static bool gpu_registered(const struct rm_file *ctl, int gpu)
{
	const struct rm_file *f;

	for (f = file_first(); f; f = f->next)
		if (f->kind == RM_FILE_GPU && f->gpu == gpu && f->registered == ctl->id)
			return true;
	return false;
}

static bool whole_pages(uint64_t n)
{
	return n % config.page == 0;
}

static uint32_t alloc_client(const struct rm_caller *c, struct rm_alloc *a)
{
	struct rm_client *client;

	if (a->root || a->parent || a->object)
		return RM_INVALID_ARGUMENT;
	client = client_new(c->file, caller_process(c));
	if (!client)
		return RM_NO_MEMORY;
	a->object = client->handle;
	return RM_OK;
}

static uint32_t alloc_device(const struct rm_caller *c, struct rm_client *client, struct rm_alloc *a)
{
	struct rm_device_params p;
	struct rm_object *o;
	uint32_t status;
	int gpu;

	if (a->parent != client->handle)
		return RM_INVALID_PARENT;
	if (a->params_size != sizeof(p))
		return RM_INVALID_STRUCT;
	if (caller_read(c, a->params, &p, sizeof(p)))
		return RM_INVALID_ARGUMENT;
	if ((p.client_share && p.client_share != client->handle) || p.target_client ||
	    p.target_device || p.flags || p.va_size || p.va_start || p.va_limit || p.va_mode > 2)
		return RM_INVALID_ARGUMENT;
	gpu = gpu_by_instance(p.instance);
	if (gpu < 0 || !gpu_registered(c->file, gpu))
		return RM_INVALID_DEVICE;
	status = object_new(client, &a->object, &o);
	if (!status)
		o->gpu = gpu;
	return status;
}

/* An object for the memory, below a device of its GPU. */
static uint32_t memory_object(struct rm_client *client, uint32_t parent, struct rm_memory *m,
			      uint32_t *handle)
{
	struct rm_object *device = find_device(client, parent), *o;
	uint32_t status;

	if (!device || device->gpu != m->gpu)
		return RM_INVALID_PARENT;
	status = object_new(client, handle, &o);
	if (status)
		return status;
	o->gpu = m->gpu;
	o->device = device;
	o->memory = memory_get(m);
	return RM_OK;
}

static uint32_t alloc_memory(const struct rm_caller *c, struct rm_client *client, struct rm_alloc *a)
{
	const struct rm_object *device = find_device(client, a->parent);
	struct rm_sim_memory p;
	struct rm_memory *m;
	uint32_t status;

	if (!device)
		return RM_INVALID_PARENT;
	if (a->params_size != sizeof(p))
		return RM_INVALID_STRUCT;
	if (caller_read(c, a->params, &p, sizeof(p)) || !p.size || !whole_pages(p.size) || p.flags)
		return RM_INVALID_ARGUMENT;
	m = memory_new(device->gpu, p.size);
	if (!m)
		return RM_NO_MEMORY;
	status = memory_object(client, a->parent, m, &a->object);
	memory_put(m);
	return status;
}

static uint32_t alloc_confidential(struct rm_client *client, struct rm_alloc *a)
{
	struct rm_object *o;
	uint32_t status;

	if (a->parent != client->handle)
		return RM_INVALID_PARENT;
	if (a->params || a->params_size)
		return RM_INVALID_STRUCT;
	status = object_new(client, &a->object, &o);
	if (!status)
		o->confidential = true;
	return status;
}

/* The GPU has fallen off the bus. */
static bool lost(const struct rm_caller *c)
{
	return fault(c, "LOST");
}

static int rm_alloc(const struct rm_caller *c, void *arg)
{
	struct rm_alloc *a = arg;
	struct rm_client *client;

	if (a->class == RM_CLASS_CLIENT) {
		a->status = alloc_client(c, a);
		return 0;
	}
	client = own_client(c, a->root);
	if (!client)
		a->status = RM_INVALID_CLIENT;
	else if (a->class == RM_CLASS_CONFIDENTIAL)
		a->status = alloc_confidential(client, a);
	else if (lost(c))
		a->status = RM_GPU_IS_LOST;
	else if (a->class == RM_CLASS_DEVICE)
		a->status = alloc_device(c, client, a);
	else if (a->class == RM_CLASS_MEMORY)
		a->status = alloc_memory(c, client, a);
	else
		a->status = RM_INVALID_CLASS;
	return 0;
}

static void revoke_below(const struct rm_caller *c, const struct rm_client *client,
			 const struct rm_object *top)
{
	const struct rm_object *o;

	for (o = client->objects; o; o = o->next)
		if (o->memory && (!top || o == top || o->device == top))
			revoke_later(c, client, o);
}

static int rm_free(const struct rm_caller *c, void *arg)
{
	struct rm_free *a = arg;
	struct rm_client *client = own_client(c, a->root);
	struct rm_object *o = client ? object_find(client, a->object) : NULL;

	a->status = RM_OK;
	if (!client) {
		a->status = RM_INVALID_CLIENT;
	} else if (a->object == client->handle) {
		revoke_below(c, client, NULL);
		client_end(client);
	} else if (!o) {
		a->status = RM_NOT_FOUND;
	} else {
		revoke_below(c, client, o);
		object_end(client, o);
	}
	return 0;
}

static bool has_client(const struct rm_file *file)
{
	const struct rm_client *client;

	for (client = client_first(); client && client->file != file; client = client->next)
		;
	return client;
}

static uint32_t export_fd(const struct rm_caller *c, struct rm_object *o, void *params)
{
	struct rm_export_fd *p = params;
	struct rm_file *file = caller_file(c, p->fd);

	if (p->type != RM_FD_OBJECT || p->flags || !file || file->kind != RM_FILE_CTL)
		return RM_INVALID_ARGUMENT;
	if (!o)
		return RM_NOT_FOUND;
	if (!o->memory)
		return RM_INVALID_OBJECT;
	if (o->device->handle != p->device)
		return RM_INVALID_PARENT;
	if (file->memory || has_client(file))
		return RM_STATE_IN_USE;
	file->memory = memory_get(o->memory);
	return RM_OK;
}

static uint32_t import_fd(const struct rm_caller *c, struct rm_client *client, void *params)
{
	uint32_t status;

	struct rm_import_fd *p = params;
	const struct rm_file *file = caller_file(c, p->fd);

	if (p->type != RM_FD_OBJECT || !file || file->kind != RM_FILE_CTL || !file->memory)
		return RM_INVALID_ARGUMENT;
	if (p->device != p->parent)
		return RM_INVALID_PARENT;
	status = check_duplicate(c, file->memory->gpu);
	return status ? status : memory_object(client, p->parent, file->memory, &p->object);
}

/* What a control is made on. The client may name an object in the parameters. */
enum target { ON_CLIENT, ON_MEMORY, ON_CONFIDENTIAL };

/*
 * fn gets the object that the control is made on, or the one that the word at named in the
 * parameters names; NULL: there is none. of_client is for controls that make objects.
 */
static const struct {
	uint32_t cmd;
	enum target target;
	uint32_t size;
	uint32_t (*fn)(const struct rm_caller *c, struct rm_object *o, void *params);
	uint32_t (*of_client)(const struct rm_caller *c, struct rm_client *client, void *params);
	size_t named;
} controls[] = {
	{ RM_CTRL_CHIPSET, ON_CLIENT, sizeof(struct rm_chipset), chipset, NULL, 0 },
	{ RM_CTRL_ATTACHED, ON_CLIENT, sizeof(struct rm_attached), attached, NULL, 0 },
	{ RM_CTRL_ID_INFO, ON_CLIENT, sizeof(struct rm_id_info), id_info, NULL, 0 },
	{ RM_CTRL_DEVICES, ON_CLIENT, sizeof(struct rm_devices), active_devices, NULL, 0 },
	{ RM_CTRL_SPACE, ON_CLIENT, sizeof(struct rm_space), address_space, NULL,
	  offsetof(struct rm_space, object) },
	{ RM_CTRL_EXPORT_FD, ON_CLIENT, sizeof(struct rm_export_fd), export_fd, NULL,
	  offsetof(struct rm_export_fd, object) },
	{ RM_CTRL_IMPORT_FD, ON_CLIENT, sizeof(struct rm_import_fd), NULL, import_fd, 0 },
	{ RM_CTRL_SURFACE, ON_MEMORY, sizeof(struct rm_surface), surface, NULL, 0 },
	{ RM_CTRL_PAGE_SIZE, ON_MEMORY, sizeof(uint64_t), page_size, NULL, 0 },
	{ RM_CTRL_CONFIDENTIAL, ON_CONFIDENTIAL, 0, capabilities, NULL, 0 },
};

static bool is_target(const struct rm_client *client, uint32_t handle, enum target t)
{
	const struct rm_object *o = object_find(client, handle);

	switch (t) {
	case ON_CLIENT:
		return handle == client->handle;
	case ON_MEMORY:
		return o && o->memory;
	case ON_CONFIDENTIAL:
		return o && o->confidential;
	}
	return false;
}

static uint32_t do_control(const struct rm_caller *c, struct rm_client *client,
			   const struct rm_control *a, size_t i, void *params)
{
	uint32_t named;

	if (controls[i].of_client)
		return controls[i].of_client(c, client, params);
	memcpy(&named, (const char *)params + controls[i].named, sizeof(named));
	return controls[i].fn(c, object_find(client, controls[i].target == ON_CLIENT ? named : a->object),
			      params);
}

static int rm_control(const struct rm_caller *c, void *arg)
{
	struct rm_control *a = arg;
	struct rm_client *client = own_client(c, a->client);
	static uint8_t params[sizeof(struct rm_devices)] __attribute__((aligned(8)));
	uint32_t size = 0;
	size_t i;

	for (i = 0; i < sizeof(controls) / sizeof(controls[0]); i++)
		if (controls[i].cmd == a->cmd)
			break;
	if (i < sizeof(controls) / sizeof(controls[0]))
		size = controls[i].size ? controls[i].size : capabilities_size();
	if (!client) {
		a->status = RM_INVALID_CLIENT;
	} else if (i == sizeof(controls) / sizeof(controls[0])) {
		a->status = RM_NOT_SUPPORTED;
	} else if (!is_target(client, a->object, controls[i].target)) {
		a->status = RM_INVALID_OBJECT;
	} else if (a->params_size != size) {
		a->status = RM_INVALID_ARGUMENT;	/* seen on 580.159 */
	} else if (a->flags || caller_read(c, a->params, params, a->params_size)) {
		a->status = RM_INVALID_ARGUMENT;
	} else {
		a->status = do_control(c, client, a, i, params);
		if (caller_write(c, a->params, params, a->params_size))
			a->status = RM_INVALID_ARGUMENT;
	}
	return 0;
}

static uint32_t dup_object(const struct rm_caller *c, struct rm_dup_object *a)
{
	struct rm_client *client = own_client(c, a->client);
	const struct rm_client *source = client_find(a->client_src);
	const struct rm_object *o;
	uint32_t status;

	if (!client || !source)
		return RM_INVALID_CLIENT;
	o = object_find(source, a->object_src);
	if (!o)
		return RM_NOT_FOUND;
	if (!o->shared && !caller_is(c, source->process))
		return RM_NO_PERMISSION;
	if (!o->memory)
		return RM_INVALID_OBJECT;
	if (a->flags)
		return RM_INVALID_ARGUMENT;
	status = check_duplicate(c, o->gpu);
	return status ? status : memory_object(client, a->parent, o->memory, &a->object);
}

static int rm_dup_object(const struct rm_caller *c, void *arg)
{
	struct rm_dup_object *a = arg;

	a->status = dup_object(c, a);
	return 0;
}

static int rm_share(const struct rm_caller *c, void *arg)
{
	struct rm_share *a = arg;
	struct rm_client *client = own_client(c, a->client);
	struct rm_object *o = client ? object_find(client, a->object) : NULL;

	if (!client) {
		a->status = RM_INVALID_CLIENT;
	} else if (!o || !o->memory) {
		a->status = RM_NOT_FOUND;
	} else if (a->policy[0] || a->policy[1] || a->policy[2]) {
		a->status = RM_NOT_SUPPORTED;
	} else {
		o->shared = true;
		a->status = RM_OK;
	}
	return 0;
}

/* Finds the memory object that the three handles name. Returns RM_OK if there is one. */
static uint32_t find_memory(const struct rm_client *client, uint32_t device, uint32_t memory,
			    struct rm_object **o)
{
	if (!client)
		return RM_INVALID_CLIENT;
	*o = object_find(client, memory);
	if (!*o || !find_device(client, device))
		return RM_NOT_FOUND;
	if (!(*o)->memory)
		return RM_INVALID_OBJECT;
	return (*o)->device->handle == device ? RM_OK : RM_INVALID_PARENT;
}

static uint32_t map_memory(const struct rm_caller *c, struct rm_map_memory *a)
{
	const struct rm_client *client = own_client(c, a->client);
	struct rm_file *file = caller_file(c, a->fd);
	struct rm_mapping *m;
	struct rm_object *o;
	uint32_t status = find_memory(client, a->device, a->memory, &o);

	if (status)
		return status;
	if (!a->length || !whole_pages(a->offset) || !whole_pages(a->length))
		return RM_INVALID_ARGUMENT;
	if (a->length > o->memory->size || a->offset > o->memory->size - a->length)
		return RM_INVALID_LIMIT;
	if (lost(c))
		return RM_GPU_IS_LOST;
	status = check_map(c, o->memory, a->offset, a->length);
	if (status)
		return status;
	/* [rm_create_mmap_context] */
	if (!file || (gpu_is_system(o->gpu) ? file->kind != RM_FILE_CTL :
		      file->kind != RM_FILE_GPU || file->gpu != o->gpu))
		return RM_INVALID_ARGUMENT;
	if (file->linear)
		return RM_STATE_IN_USE;
	m = mapping_new(o, a->offset, a->length, !c->file->cuda && gpu_has_bar(o->gpu));
	if (!m)
		return RM_NO_RESOURCES;
	file->linear = a->linear = m->linear;
	file->mapper = client->handle;
	a->flags = (a->flags & ~RM_MAP_ANSWER_MASK) | map_answer(o->gpu);
	return RM_OK;
}

static int rm_map_memory(const struct rm_caller *c, void *arg)
{
	struct rm_map_memory *a = arg;

	a->status = map_memory(c, a);
	return 0;
}

static int rm_unmap_memory(const struct rm_caller *c, void *arg)
{
	struct rm_unmap_memory *a = arg;
	const struct rm_client *client = own_client(c, a->client);
	struct rm_object *o, *of;
	struct rm_mapping *m;

	a->status = find_memory(client, a->device, a->memory, &o);
	if (a->status)
		return 0;
	m = mapping_find(client, a->linear, &of);
	if (m && of == o)
		mapping_end(o, m);
	else
		a->status = RM_NOT_FOUND;
	return 0;
}

/* In reverse, so that an index is not an ordinal. */
static int rm_card_info(const struct rm_caller *c, void *arg, size_t size)
{
	struct rm_card_info *card = arg;
	int i;

	(void)c;
	if (size % sizeof(*card) || size / sizeof(*card) < (size_t)config.gpus)
		return EINVAL;
	memset(arg, 0, size);
	for (i = config.gpus - 1; i >= 0; i--, card++)
		card_info(i, card);
	return 0;
}

/* The request is on a GPU's file. */
static int rm_register_fd(const struct rm_caller *c, void *arg)
{
	const struct rm_register_fd *a = arg;
	const struct rm_file *ctl = caller_file(c, a->ctl_fd);

	if (!ctl || ctl->kind != RM_FILE_CTL || c->file->registered)
		return EINVAL;
	c->file->registered = ctl->id;
	return 0;
}

static int rm_version(const struct rm_caller *c, void *arg)
{
	struct rm_version *a = arg;
	char version[sizeof(a->version)] = "";

	(void)c;
	snprintf(version, sizeof(version), VERSION_FORMAT, config.driver);
	if (a->cmd != '2' && (a->cmd || memcmp(a->version, version, sizeof(version)) != 0)) {
		a->reply = 0;
		return EINVAL;
	}
	memcpy(a->version, version, sizeof(version));
	a->reply = 1;
	return 0;
}

/* One part of one object: the simulated libcuda exports nothing else. */
static uint32_t export_dmabuf(const struct rm_caller *c, const struct rm_dmabuf *a, int32_t *out_fd)
{
	const struct rm_client *client = client_find(a->client);
	const struct rm_object *o;
	struct rm_file *file;
	int fd;

	if (!client || !caller_is(c, client->process))
		return RM_INVALID_CLIENT;
	if (a->fd != -1 || a->index || a->mapping_type || a->allow_mmap > 1)
		return RM_INVALID_ARGUMENT;
	if (a->total_objects != 1 || a->objects != 1)
		return RM_NOT_SUPPORTED;
	o = object_find(client, a->handles[0]);
	if (!o)
		return RM_NOT_FOUND;
	if (!o->memory || o->gpu != c->file->gpu)
		return RM_INVALID_OBJECT;
	if (!gpu_exports(o->gpu))
		return RM_NOT_SUPPORTED;
	if (!a->sizes[0] || !whole_pages(a->offsets[0]) || !whole_pages(a->sizes[0]) ||
	    a->sizes[0] > o->memory->size || a->offsets[0] > o->memory->size - a->sizes[0] ||
	    a->total_size != a->sizes[0])
		return RM_INVALID_ARGUMENT;
	file = file_new(RM_FILE_DMABUF, o->gpu, &fd);
	file->memory = memory_get(o->memory);
	if (a->allow_mmap) {
		file->offset = a->offsets[0];
		file->length = a->sizes[0];
	}
	*out_fd = caller_give(c, fd, false);
	close(fd);
	return *out_fd < 0 ? RM_NO_RESOURCES : RM_OK;
}

/* Drivers before 570 have another struct. */
static int rm_export_dmabuf(const struct rm_caller *c, void *arg, size_t size)
{
	struct rm_dmabuf_2600 *old = arg;
	struct rm_dmabuf *a = arg, copy;
	int32_t fd = -1;

	if (size != (config.driver < 570 ? sizeof(*old) : sizeof(*a)))
		return EINVAL;
	if (size == sizeof(*a)) {
		a->status = export_dmabuf(c, a, &fd);
		a->fd = fd;
		return 0;
	}
	copy = (struct rm_dmabuf){
		.fd = old->fd,
		.client = old->client,
		.total_objects = old->total_objects,
		.objects = old->objects,
		.index = old->index,
		.total_size = old->total_size,
		.handles = { old->handles[0] },
		.offsets = { old->offsets[0] },
		.sizes = { old->sizes[0] },
	};
	old->status = export_dmabuf(c, &copy, &fd);
	old->fd = fd;
	return 0;
}

#define CTL (1u << RM_FILE_CTL)
#define GPU (1u << RM_FILE_GPU)
#define ANY (CTL | GPU | 1u << RM_FILE_DMABUF)

/* size 0: fn checks the size. status: its offset in the struct, 0 without one. */
static const struct {
	unsigned int nr, kinds;
	size_t size, status;
	const char *name;
	int (*fn)(const struct rm_caller *c, void *arg);
	int (*sized)(const struct rm_caller *c, void *arg, size_t size);
} requests[] = {
#define STATUS(type) sizeof(struct type), offsetof(struct type, status)
	{ _IOC_NR(RM_ALLOC), CTL, STATUS(rm_alloc), "ALLOC", rm_alloc, NULL },
	{ _IOC_NR(RM_FREE), CTL, STATUS(rm_free), "FREE", rm_free, NULL },
	{ _IOC_NR(RM_CONTROL), CTL, STATUS(rm_control), "CONTROL", rm_control, NULL },
	{ _IOC_NR(RM_DUP_OBJECT), CTL, STATUS(rm_dup_object), "DUP_OBJECT", rm_dup_object, NULL },
	{ _IOC_NR(RM_SHARE), CTL, STATUS(rm_share), "SHARE", rm_share, NULL },
	{ _IOC_NR(RM_MAP_MEMORY), CTL, STATUS(rm_map_memory), "MAP_MEMORY", rm_map_memory, NULL },
	{ _IOC_NR(RM_UNMAP_MEMORY), CTL, STATUS(rm_unmap_memory), "UNMAP_MEMORY", rm_unmap_memory, NULL },
	{ RM_CARD_INFO_NR, CTL, 0, 0, "CARD_INFO", NULL, rm_card_info },
	{ _IOC_NR(RM_REGISTER_FD), GPU, sizeof(struct rm_register_fd), 0, "REGISTER_FD", rm_register_fd, NULL },
	{ _IOC_NR(RM_VERSION), CTL, sizeof(struct rm_version), 0, "VERSION", rm_version, NULL },
	{ _IOC_NR(RM_EXPORT_DMABUF), GPU, 0, 0, "EXPORT_DMABUF", NULL, rm_export_dmabuf },
	{ _IOC_NR(RM_SIM_STATS), CTL, sizeof(struct rm_sim_stats), 0, "STATS", rm_sim_stats, NULL },
	{ _IOC_NR(RM_SIM_MMAP), ANY, sizeof(struct rm_sim_mmap), 0, "MMAP", rm_sim_mmap, NULL },
	{ _IOC_NR(RM_SIM_MAPPED), CTL | GPU, sizeof(struct rm_sim_mapped), 0, "MAPPED", rm_sim_mapped, NULL },
	{ _IOC_NR(RM_SIM_INFO), CTL, STATUS(rm_sim_info), "INFO", rm_sim_info, NULL },
	{ _IOC_NR(RM_SIM_HOLDS), ANY, sizeof(uint32_t), 0, "HOLDS", rm_sim_holds, NULL },
	{ _IOC_NR(RM_SIM_LIVE), CTL, sizeof(struct rm_sim_live), 0, "LIVE", rm_sim_live, NULL },
	{ _IOC_NR(RM_SIM_FAIL), CTL, sizeof(struct rm_sim_fail), 0, "FAIL", rm_sim_fail, NULL },
	{ _IOC_NR(RM_SIM_CUDA), CTL, sizeof(uint32_t), 0, "CUDA", rm_sim_cuda, NULL },
#undef STATUS
};

#define REQUESTS (sizeof(requests) / sizeof(requests[0]))

/* What may fail beside the requests: LOST is the GPU, MMAP_STATUS what mmap answers. */
bool request_known(const char *name)
{
	static const char *const others[] = { "OPEN", "LOST", "MMAP_STATUS" };
	size_t i;

	for (i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (strcmp(others[i], name) == 0)
			return true;
	for (i = 0; i < REQUESTS && strcmp(requests[i].name, name) != 0; i++)
		;
	return i < REQUESTS;
}

/* A file of the simulated libcuda's, if that is known. */
static bool of_cuda(const struct rm_file *f)
{
	const struct rm_client *mapper = f && f->mapper ? client_find(f->mapper) : NULL;

	return f && (f->cuda || (mapper && mapper->file->cuda));
}

/* The injected failure of the call: a status, or an errno if the call has no status. */
int fault(const struct rm_caller *c, const char *name)
{
	return of_cuda(c->file) ? 0 : sim_fault(&rm_faults, name);
}

int request(const struct rm_caller *c, unsigned int cmd, void *arg)
{
	size_t size = _IOC_SIZE(cmd), i;
	uint32_t status;
	int failure;

	for (i = 0; i < REQUESTS && requests[i].nr != _IOC_NR(cmd); i++)
		;
	if (i == REQUESTS || !(requests[i].kinds & 1u << c->file->kind))
		return EINVAL;
	if (requests[i].size && requests[i].size != size)
		return EINVAL;
	failure = fault(c, requests[i].name);
	if (failure && requests[i].status) {
		status = (uint32_t)failure;
		memcpy((char *)arg + requests[i].status, &status, sizeof(status));
		return 0;
	}
	if (failure)
		return failure;
	return requests[i].fn ? requests[i].fn(c, arg) : requests[i].sized(c, arg, size);
}
