#include "tests/emulated_gpu/image_rules.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace torch_remote::worker::cuda::emulated {
namespace {

constexpr size_t kElfHeader = 64;
constexpr char kElfMagic[] = {0x7F, 'E', 'L', 'F', 0};
constexpr uint16_t kElfMachine = 190;  // EM_CUDA
constexpr int kNewerAbi = 8;
// Drivers 570 and 575 load the newer ABI for Blackwell, whose machine code has no other ABI.
constexpr int kBlackwellDriver = 12080, kNewerAbiDriver = 13000;

// Offsets in a 64-bit ELF header.
constexpr size_t kClass = 4, kOsAbi = 7, kAbiVersion = 8, kMachine = 18, kFlags = 48;

struct PtxOfDriver {
  int driver, ptx;
};
// NVIDIA, PTX ISA, release history.
constexpr PtxOfDriver kPtx[] = {{12000, 80}, {12010, 81}, {12020, 82}, {12030, 83}, {12040, 84}, {12050, 85},
                                {12060, 85}, {12070, 86}, {12080, 87}, {12090, 88}, {13000, 90}, {13010, 91}};

// The rest of the line after `directive`; empty: the text does not have it.
std::string_view value_of(std::string_view text, std::string_view directive) {
  const size_t at = text.find(directive);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + directive.size());
  text = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text;
}

int number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

ImageFacts read_elf(const unsigned char* bytes) {
  ImageFacts facts{.kind = ImageFacts::Kind::kElf};
  // A file that is not a 64-bit ELF file may be shorter than its header.
  if (bytes[kClass] != 2) return {};
  uint16_t machine = 0;
  uint32_t flags = 0;
  std::memcpy(&machine, bytes + kMachine, sizeof(machine));
  std::memcpy(&flags, bytes + kFlags, sizeof(flags));
  if (machine != kElfMachine) return {};
  facts.elf_abi = bytes[kAbiVersion];
  facts.sm = facts.elf_abi >= kNewerAbi ? flags >> 8 & 0xFF : flags & 0xFF;
  facts.body = kElfHeader;
  return facts;
}

ImageFacts read_ptx(std::string_view text) {
  ImageFacts facts{.kind = ImageFacts::Kind::kPtx};
  const std::string_view version = value_of(text, ".version");  // "8.0"
  const std::string_view target = value_of(text, ".target sm_");
  facts.ptx_version = 10 * number(version) + number(version.substr(std::min(version.find('.') + 1, version.size())));
  facts.sm = static_cast<uint32_t>(number(target));
  const size_t last = text.find(".address_size");
  facts.body = last == std::string_view::npos ? text.size() : std::min(text.find('\n', last) + 1, text.size());
  return facts;
}

std::string text_of(int version) { return std::to_string(version / 10) + "." + std::to_string(version % 10); }

}  // namespace

int newest_ptx(int driver) {
  int newest = 0;
  for (const PtxOfDriver& row : kPtx) newest = driver >= row.driver ? row.ptx : newest;
  return newest;
}

ImageFacts read_image(const void* image) {
  const auto* const bytes = static_cast<const unsigned char*>(image);
  if (std::strncmp(static_cast<const char*>(image), kElfMagic, 4) == 0) return read_elf(bytes);
  if (bytes[0] != '.' && bytes[0] != '/') return {};
  const std::string_view text(static_cast<const char*>(image));
  return text.find(".version") == std::string_view::npos ? ImageFacts() : read_ptx(text);
}

Result check_image(const ImageFacts& image, int driver, uint32_t sm, std::string* log) {
  log->clear();
  switch (image.kind) {
    case ImageFacts::Kind::kElf: {
      const int oldest = image.elf_abi < kNewerAbi ? kDriverVersion
                         : image.sm >= 100         ? kBlackwellDriver
                                                   : kNewerAbiDriver;
      if (driver < oldest) return Result::kInvalidImage;
      return image.sm / 10 == sm / 10 && image.sm <= sm ? Result::kSuccess : Result::kNoBinaryForGpu;
    }
    case ImageFacts::Kind::kPtx:
      if (image.ptx_version > newest_ptx(driver)) {
        *log = "ptxas application ptx input, line 1; fatal   : Unsupported .version " + text_of(image.ptx_version) +
               "; current version is '" + text_of(newest_ptx(driver)) + "'";
        return Result::kUnsupportedPtxVersion;
      }
      if (image.sm > sm) {
        *log = "ptxas fatal   : SM version specified by .target is higher than default SM version assumed";
        return Result::kInvalidPtx;
      }
      return Result::kSuccess;
    case ImageFacts::Kind::kOther:
      break;
  }
  return Result::kInvalidImage;
}

std::vector<uint8_t> make_elf(uint32_t sm, int abi, const void* body, size_t bytes) {
  std::vector<uint8_t> image(kElfHeader + bytes);
  std::memcpy(image.data(), kElfMagic, 4);
  image[kClass] = 2;
  image[kOsAbi] = abi >= kNewerAbi ? 0x41 : 0x33;
  image[kAbiVersion] = static_cast<uint8_t>(abi);
  const uint32_t flags = abi >= kNewerAbi ? sm << 8 : sm << 16 | sm;
  std::memcpy(image.data() + kMachine, &kElfMachine, sizeof(kElfMachine));
  std::memcpy(image.data() + kFlags, &flags, sizeof(flags));
  if (bytes != 0) std::memcpy(image.data() + kElfHeader, body, bytes);
  return image;
}

std::string make_ptx(uint32_t sm, int version, std::string_view ir) {
  return ".version " + text_of(version) + "\n.target sm_" + std::to_string(sm) + "\n.address_size 64\n" +
         std::string(ir);
}

}  // namespace torch_remote::worker::cuda::emulated
