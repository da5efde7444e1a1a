/* Stands for libnvidia-ml.so.1 where there is no GPU: two H200s, the second one sick. The declarations follow nvml.h, so
 * that what crosses the boundary has the real sizes; what isn't here is "function not found", as in an old driver. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, VERSION_MISMATCH = 25 };

typedef struct { int index; } *Device;
static struct { int index; } gpus[2] = {{0}, {1}};

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
  switch (code) {
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) { strncpy(version, "580.1.2", length); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  if (index > 1) return INVALID_ARGUMENT;
  *device = (Device)&gpus[index];
  return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
  return nvmlDeviceGetHandleByIndex_v2(uuid[strlen(uuid) - 1] - '0', device);
}

int nvmlDeviceGetIndex(Device device, unsigned *index) { *index = device->index; return SUCCESS; }
int nvmlDeviceGetName(Device device, char *name, unsigned length) { strncpy(name, "NVIDIA H200", length); return SUCCESS; }

int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
  strncpy(uuid, device->index ? "GPU-1" : "GPU-0", length);
  return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) { *major = 9, *minor = 0; return SUCCESS; }

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory *memory) {
  if (memory->version != (sizeof(Memory) | 2 << 24)) return VERSION_MISMATCH;
  memory->total = 140ull << 30, memory->used = device->index ? 3ull << 30 : 0;
  return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
  unsigned room = *count;
  *count = device->index;
  if (room < *count) return INSUFFICIENT_SIZE;
  if (*count) processes[0] = (Process){4242, 3ull << 30, -1, -1};
  return SUCCESS;
}

int nvmlDeviceGetEccMode(Device device, unsigned *now, unsigned *pending) { *now = *pending = 1; return SUCCESS; }

int nvmlDeviceGetTotalEccErrors(Device device, unsigned error, unsigned counter, unsigned long long *count) {
  if (error != 1) return INVALID_ARGUMENT; /* asked for corrected ones */
  *count = device->index ? counter ? 5 : 2 : 0;
  return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  *corrected = 0, *uncorrected = *pending = device->index, *failed = 0;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
  if (link >= 18) return INVALID_ARGUMENT;
  *active = !(device->index && link == 5);
  return SUCCESS;
}

int nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned link, unsigned counter, unsigned long long *count) {
  if (counter == 2) return NOT_SUPPORTED; /* CRC of flits */
  *count = device->index && link == 7 && counter == 1 ? 4 : 0;
  return SUCCESS;
}

typedef struct {
  unsigned version;
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
} Fabric;

int nvmlDeviceGetGpuFabricInfoV(Device device, Fabric *fabric) {
  if (fabric->version != (sizeof(Fabric) | 2 << 24)) return VERSION_MISMATCH;
  memset(&fabric->state, 0xAA, 4); /* its padding holds anything */
  memset(fabric->cluster_uuid, getenv("STUB_CLUSTER") ? 0x11 : 0, 16);
  fabric->status = SUCCESS, fabric->clique = 7, fabric->state = 3, fabric->health = device->index ? 1 : 2;
  return SUCCESS;
}

int nvmlDeviceGetP2PStatus(Device a, Device b, unsigned capability, unsigned *status) {
  if (capability != 1) return INVALID_ARGUMENT;
  *status = a->index ? 5 : 0;
  return SUCCESS;
}

typedef struct { Device device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;

int nvmlEventSetCreate(void **events) { *events = gpus; return SUCCESS; }
int nvmlEventSetFree(void *events) { return SUCCESS; }
int nvmlDeviceRegisterEvents(Device device, unsigned long long types, void *events) { return types == 8 ? SUCCESS : NOT_SUPPORTED; }

int nvmlEventSetWait_v2(void *events, Event *event, unsigned timeout_ms) {
  static int number_of_calls;
  if (number_of_calls++) {
    usleep(timeout_ms * 1000);
    return TIMEOUT;
  }
  *event = (Event){(Device)&gpus[1], 8, 79, 0, 0};
  return SUCCESS;
}
