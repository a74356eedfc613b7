#include "worker/targets/cuda/device/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace torch_remote::worker::cuda {
namespace {

constexpr int kNewest = 13, kOldest = 12;

std::string package_of(const Library& library, int major) {
  std::string name(library.package);
  if (major == kOldest || !library.version.empty()) name += "-cu" + std::to_string(major);
  return name;
}

std::string soname_of(const Library& library, int major) {
  return std::string(library.soname) + "." +
         (library.version.empty() ? std::to_string(major) : std::string(library.version));
}

}  // namespace

void* OpenLibrary::find(const char* symbol) const { return dlsym(handle, symbol); }

std::vector<std::string> paths_of(const Library& library, const LibrarySearchPath& search_path, int major) {
  const std::string soname = soname_of(library, major);
  if (!search_path.folder.empty()) return {search_path.folder + "/" + soname};
  std::vector<std::string> paths;
  if (!search_path.packages.empty()) {
    const bool has_own = major == kOldest || !library.version.empty();
    const std::string folder = has_own ? std::string(library.folder) : "cu" + std::to_string(major);
    paths.push_back(search_path.packages + "/nvidia/" + folder + "/lib/" + soname);
  }
  paths.push_back(soname);
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME"}) {
    const char* folder = std::getenv(variable);
    if (folder == nullptr || *folder == '\0') continue;
    for (const char* inner : {"/lib64/", "/lib/"}) paths.push_back(std::string(folder) + inner + soname);
  }
  for (const char* inner : {"/lib64/", "/lib/"}) paths.push_back(std::string("/usr/local/cuda") + inner + soname);
  return paths;
}

Status open_library(const Library& library, const LibrarySearchPath& search_path, OpenLibrary* opened) {
  const int newest = search_path.driver >= 1000 * kNewest ? kNewest : kOldest;
  // A library with its own version has the same soname for every CUDA.
  const int oldest = library.version.empty() ? kOldest : newest;
  const auto take = [&](void* handle, int major) {
    link_map* map = nullptr;
    if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) return false;
    *opened = {handle, map->l_name, major};
    return true;
  };
  std::string why;
  for (int major = newest; major >= oldest; --major) {
    const std::string soname = soname_of(library, major);
    if (take(dlopen(soname.c_str(), RTLD_NOW | RTLD_NOLOAD), major)) return {};
  }
  for (int major = newest; major >= oldest; --major) {
    for (const std::string& path : paths_of(library, search_path, major)) {
      if (take(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), major)) return {};
      const std::string error = dlerror();
      // The file exists, so report what is wrong with it.
      if (error.find("No such file") == std::string::npos) why = error;
    }
  }
  std::string message = "cuda: there is no " + soname_of(library, newest) + " (" + std::string(library.name) + ")";
  if (!search_path.folder.empty()) message += " in " + search_path.folder;
  if (!why.empty()) message += ": " + why;
  return {ErrorCode::kUnsupported,
          message + "; install it: pip install " + package_of(library, newest) +
              ", or set the folder that contains it: TORCH_REMOTE_CUDA_LIB=/usr/local/cuda/lib64"};
}

void open_siblings(const OpenLibrary& library, std::string_view beginning) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(library.path).parent_path(), error)) {
    if (entry.path().filename().native().starts_with(beginning)) {
      (void)dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
}

}  // namespace torch_remote::worker::cuda
