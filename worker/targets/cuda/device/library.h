#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"

// Libraries of NVIDIA's that are opened at run time, and stay open.
namespace torch_remote::worker::cuda {

struct Library {
  std::string_view name;     // "cuBLASLt"
  std::string_view soname;   // "libcublasLt.so": ".13" or ".12" comes behind it
  std::string_view package;  // "nvidia-cublas": that of CUDA 12 has "-cu12" behind it
  std::string_view folder;   // of CUDA 12, in the folder of NVIDIA's packages: "cublas"
  // Of a library that has a version of its own ("9"): that comes behind the soname, its packages are in `folder` for
  // every CUDA, and all their names say which ("-cu13").
  std::string_view version = {};
};

// Where they may be, in the order in which they are looked for: what the process has open, `given`, NVIDIA's packages
// beside ours, where the system finds libraries, CUDA's folders (CUDA_PATH, CUDA_HOME, /usr/local/cuda).
struct LibraryPlaces {
  std::string given;          // a folder; empty: none. If it has none of the libraries' versions, that is an error
  std::string packages = {};  // the folder of Python packages ("site-packages"); empty: none
  int driver = 0;             // the driver's version: 13000. Libraries of later versions of CUDA do not run on it
};

struct OpenLibrary {
  void* handle = nullptr;
  std::string path;
  int major = 0;  // of its version
  void* find(const char* symbol) const;
};

// Files to try, in this order, beside what is open already.
std::vector<std::string> paths_of(const Library& library, const LibraryPlaces& places, int major);

// An error names the package and how it is installed.
Status open_library(const Library& library, const LibraryPlaces& places, OpenLibrary* opened);

// Opens what else is in its folder and has a name that begins so: what a library looks for only where the system does.
void open_beside(const OpenLibrary& library, std::string_view beginning);

}  // namespace torch_remote::worker::cuda
