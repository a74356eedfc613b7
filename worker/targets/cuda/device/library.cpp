#include "worker/targets/cuda/device/library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>

namespace torch_remote::worker::cuda {
namespace {

constexpr int kNewest = 13, kOldest = 12;

// Folders of libraries in a CUDA or conda installation.
#ifdef __aarch64__
constexpr const char* kToolkitFolders[] = {"/lib64/", "/lib/", "/targets/sbsa-linux/lib/"};
#else
constexpr const char* kToolkitFolders[] = {"/lib64/", "/lib/", "/targets/x86_64-linux/lib/"};
#endif

std::string package_of(const Library& library, int major) {
  std::string name(library.package);
  if (major == kOldest || !library.version.empty()) name += "-cu" + std::to_string(major);
  return name;
}

std::string soname_of(const Library& library, int major) {
  return std::string(library.soname) + "." +
         (library.version.empty() ? std::to_string(major) : std::string(library.version));
}

int newest_of(const LibrarySearchPath& search_path) { return search_path.driver >= 1000 * kNewest ? kNewest : kOldest; }

// A library with its own version has the same soname for every CUDA.
int oldest_of(const Library& library, const LibrarySearchPath& search_path) {
  return library.version.empty() ? kOldest : newest_of(search_path);
}

// Whether dlopen failed because there is no such file. Otherwise the file exists, and `error` says what is wrong with
// it: for example, a library that it needs is missing.
bool is_absent(const std::string& path, const std::string& error) {
  std::error_code ignored;
  if (path.find('/') != std::string::npos) return !std::filesystem::exists(path, ignored);
  return error.starts_with(path + ":") && error.find("No such file") != std::string::npos;
}

// "/opt/cuda, the packages in /venv/lib/python3.12/site-packages"
std::string places_of(const LibrarySearchPath& search_path) {
  std::string text;
  const auto add = [&](const std::string& place) { text += (text.empty() ? "" : ", ") + place; };
  for (const std::string& folder : search_path.folders) add(folder);
  for (const std::string& folder : search_path.packages) add("NVIDIA's packages in " + folder);
  if (search_path.linker) add("the folders of the dynamic linker");
  for (const std::string& folder : search_path.toolkits) add(folder);
  return text;
}

}  // namespace

void* OpenLibrary::find(const char* symbol) const { return dlsym(handle, symbol); }

std::vector<LibraryFile> files_of(const Library& library, const LibrarySearchPath& search_path) {
  const int newest = newest_of(search_path), oldest = oldest_of(library, search_path);
  std::vector<LibraryFile> files;
  for (const std::string& folder : search_path.folders) {
    for (int major = newest; major >= oldest; --major)
      files.push_back({folder + "/" + soname_of(library, major), major});
  }
  for (int major = newest; major >= oldest; --major) {
    const std::string soname = soname_of(library, major);
    const bool has_own = major == kOldest || !library.version.empty();
    const std::string inner = has_own ? std::string(library.folder) : "cu" + std::to_string(major);
    for (const std::string& folder : search_path.packages) {
      files.push_back({folder + "/nvidia/" + inner + "/lib/" + soname, major});
    }
    if (search_path.linker) files.push_back({soname, major});
    for (const std::string& folder : search_path.toolkits) {
      for (const char* const libraries : kToolkitFolders) {
        files.push_back({folder + libraries + soname, major});
      }
    }
  }
  return files;
}

Status open_library(const Library& library, const LibrarySearchPath& search_path, OpenLibrary* opened) {
  const int newest = newest_of(search_path);
  const auto take = [&](void* handle, int major) {
    link_map* map = nullptr;
    if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) return false;
    *opened = {handle, map->l_name, major};
    return true;
  };
  for (int major = newest; major >= oldest_of(library, search_path); --major) {
    if (take(dlopen(soname_of(library, major).c_str(), RTLD_NOW | RTLD_NOLOAD), major)) return {};
  }
  std::string why;  // Why the first file that exists cannot be loaded.
  for (const LibraryFile& file : files_of(library, search_path)) {
    if (take(dlopen(file.path.c_str(), RTLD_NOW | RTLD_LOCAL), file.major)) return {};
    const std::string error = dlerror();
    if (why.empty() && !is_absent(file.path, error)) why = error;
  }
  std::string message = "cuda: there is no " + soname_of(library, newest) + " (" + std::string(library.name) + ")";
  if (const std::string places = places_of(search_path); !places.empty()) message += " in " + places;
  if (!why.empty()) message += ": " + why;
  return {ErrorCode::kUnsupported,
          message + "; install it: pip install " + package_of(library, newest) +
              ", or set the folders that contain it: TORCH_REMOTE_CUDA_LIB=/usr/local/cuda/lib64"};
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
