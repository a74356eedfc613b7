#include "worker/targets/cuda/kernels/kernel_images.h"

#include <cstring>

namespace torch_remote::worker::cuda {

KernelImages find_images(KernelArchive archive, KernelFile file, uint32_t sm) {
  ArchiveHeader header;
  if (archive.size() < sizeof(header)) return {};
  std::memcpy(&header, archive.data(), sizeof(header));
  KernelImages found;
  for (uint64_t i = 0; i < header.images; ++i) {
    ImageEntry entry;
    std::memcpy(&entry, archive.data() + sizeof(header) + i * sizeof(entry), sizeof(entry));
    if (entry.file != static_cast<uint32_t>(file) || entry.sm > sm) continue;
    const KernelArchive image = archive.subspan(entry.offset, entry.size);
    if (entry.is_ptx != 0) found.ptx = image;
    if (entry.is_ptx == 0 && (entry.sm == 0 || entry.sm / 10 == sm / 10)) found.code = image;
  }
  return found;
}

}  // namespace torch_remote::worker::cuda
