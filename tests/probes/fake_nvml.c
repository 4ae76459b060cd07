/* A libnvidia-ml.so.1 for tests: FAKE_NVML names what it plays. Only the calls that the reader makes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
  unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health;
} Fabric;

static int plays(const char *word) {
  const char *text = getenv("FAKE_NVML");
  return text && strstr(text, word) != NULL;
}
static long index_of(void *handle) { return (long)handle - 1; }
static int is_slice(void *handle) { return index_of(handle) >= 100; }

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  if (plays("hang")) for (;;) sleep(1000);
  if (plays("crash")) abort();
  if (plays("noise")) { printf("driver says hello\n"); fflush(stdout); }
  return plays("mismatch") ? 18 : plays("unloaded") ? 9 : plays("unknown") ? 999 : 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.126.09"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = plays("four") ? 4 : 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (plays("lost") && index == 1) return 15;
  *handle = (void *)((long)index + 1);
  return 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
  snprintf(text, size, is_slice(handle) ? "NVIDIA B200 MIG 1g.23gb" : "NVIDIA B200");
  return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
  snprintf(text, size, "%s-52a3a85d-3c55-4b1e-9a11-%012lx", is_slice(handle) ? "MIG" : "GPU", index_of(handle) + 1);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  (void)handle;
  *major = plays("gb10") ? 12 : 10;
  *minor = plays("gb10") ? 1 : 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  if (plays("gb10")) return 3;
  memory->total = is_slice(handle) ? 24696061952ULL : 192265846784ULL;
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02lX:00.0", 0x10 + index_of(handle));
  pci->id = 0x290110DE;
  return 0;
}
int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { *minor = (unsigned)index_of(handle); return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
  (void)handle;
  if (plays("old")) return 3;
  *current = *pending = plays("mig") ? 1 : 0;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned slot, void **slice) {
  if (slot > 1) return 6;
  *slice = (void *)(101 + 10 * index_of(handle) + (long)slot);
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void *handle, Fabric *fabric) {
  (void)handle;
  if (plays("old")) return 13;
  fabric->state = plays("progress") ? 2 : 3;
  fabric->status = 0;
  return 0;
}
