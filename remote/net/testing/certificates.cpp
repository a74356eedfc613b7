#include "remote/net/testing/certificates.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace torch_remote::remote::testing {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

File open_file(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode));
  if (!file) std::abort();
  return file;
}

void add_extension(X509* certificate, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  if (extension == nullptr) std::abort();
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

void make_certificate(const std::string& file, const CertificateOptions& options) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), std::hash<std::string>()(file) >> 1 | 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), options.from);
  X509_gmtime_adj(X509_getm_notAfter(certificate), options.until);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(options.name.c_str()),
                             -1, -1, 0);
  X509* issuer = certificate;
  EVP_PKEY* signer = key;
  if (!options.authority.empty()) {
    issuer = PEM_read_X509(open_file(options.authority + ".pem", "r").get(), nullptr, nullptr, nullptr);
    signer = PEM_read_PrivateKey(open_file(options.authority + ".key", "r").get(), nullptr, nullptr, nullptr);
  }
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
  add_extension(certificate, issuer, NID_basic_constraints, options.is_authority ? "critical,CA:TRUE" : "CA:FALSE");
  in6_addr number;
  const bool is_number =
      inet_pton(AF_INET, options.name.c_str(), &number) == 1 || inet_pton(AF_INET6, options.name.c_str(), &number) == 1;
  add_extension(certificate, issuer, NID_subject_alt_name, (is_number ? "IP:" : "DNS:") + options.name);
  X509_sign(certificate, signer, EVP_sha256());
  PEM_write_X509(open_file(file + ".pem", "w").get(), certificate);
  PEM_write_PrivateKey(open_file(file + ".key", "w").get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  if (issuer != certificate) {
    X509_free(issuer);
    EVP_PKEY_free(signer);
  }
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace torch_remote::remote::testing
