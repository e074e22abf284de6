# Types as strict as the daemon's own checks, so that a mistake is told by the name of
# its option and before anything is built. What a type can't say, `proxyd --check-config`
# finds at build time.
{ lib }:
let
  inherit (lib) types;

  # `type`, and a condition that says in words what it wants.
  where =
    type: description: check:
    types.addCheck type check // { inherit description; };

  matching =
    description: pattern: where types.str description (text: builtins.match pattern text != null);

  # Of the URL standard only what a typing mistake runs into.
  webUrl = "https?://[^/?#[:space:]]+[^[:space:]]*";

  # A number of an IPv4 address.
  octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  ipv4Pattern = "${octet}\\.${octet}\\.${octet}\\.${octet}";

  # A duration's parts, such as `1m 30s`, in milliseconds.
  units = {
    ms = 1;
    s = 1000;
    m = 60 * 1000;
    h = 60 * 60 * 1000;
    d = 24 * 60 * 60 * 1000;
  };

  durationPart = "([1-9][0-9]{0,8}|0)(ms|s|m|h|d)";
in
rec {
  isIdentifier = text: builtins.match "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?" text != null;

  identifierRule = "use 1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit";

  identifier =
    where types.str
      "identifier (1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit)"
      isIdentifier;

  sha256 = matching "sha256 (64 hexadecimal digits)" "[0-9a-fA-F]{64}";

  httpUrl = matching "http:// or https:// URL" webUrl;

  isUrl = text: builtins.match "[a-zA-Z][a-zA-Z0-9+.-]*:.*" text != null;

  # What an image comes from: a URL, or a file of this host, in the store or elsewhere.
  imageSource =
    where (types.either types.path types.str)
      "http://, https:// or file:/// URL, an absolute path, or a package such as a pkgs.fetchurl"
      (
        value:
        !(builtins.isString value) || builtins.match "(${webUrl}|[fF][iI][lL][eE]:///.+|/.+)" value != null
      );

  # A Proxy's image: a key or a URL; whether it is one that is offered is asserted.
  imageChoice = where types.str "image key, or http://, https:// or file:/// URL" (
    text: isIdentifier text || builtins.match "(${webUrl}|[fF][iI][lL][eE]:///.+)" text != null
  );

  # A libvirt pool's or network's name.
  libvirtName = matching "libvirt name (not empty, without \"/\")" "[^/[:cntrl:]]*[^/[:cntrl:][:space:]][^/[:cntrl:]]*";

  interfaceName = where types.str "interface name (1 to 15 bytes without \"/\", \":\" and spaces)" (
    text: builtins.match "[^/:[:space:][:cntrl:]]{1,15}" text != null && text != "." && text != ".."
  );

  libvirtUri = matching "libvirt URI (qemu:///system, qemu+unix:///system or qemu+ssh://user@host[:port]/system, without a password)" "(qemu(\\+unix)?:///(system|session)(\\?[^[:space:]]*)?|qemu\\+ssh://([A-Za-z0-9._][A-Za-z0-9._-]*@)?(\\[[0-9A-Fa-f:.]+]|[A-Za-z0-9._][A-Za-z0-9._-]*)(:[0-9]{1,5})?/system)";

  isOverSsh = lib.hasPrefix "qemu+ssh:";

  durationParts = text: lib.filter builtins.isList (builtins.split durationPart text);

  milliseconds =
    text:
    lib.foldl' (sum: part: sum + lib.toInt (lib.elemAt part 0) * units.${lib.elemAt part 1}) 0 (
      durationParts text
    );

  duration =
    { least, most }:
    where types.str "duration of ${least} to ${most}, such as \"30s\" or \"1m 30s\"" (
      text:
      builtins.match "${durationPart}( ?${durationPart})*" text != null
      && milliseconds text >= milliseconds least
      && milliseconds text <= milliseconds most
    );

  ipv4 = matching "IPv4 address" ipv4Pattern;

  # The host bits of a network are checked when the configuration is built.
  clientNetwork = matching "IP address, or network such as \"192.0.2.0/24\"" "(${ipv4Pattern}(/(3[0-2]|[12]?[0-9]))?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)";

  metricsAddress = matching "loopback address and port such as \"127.0.0.1:9750\", or \"unix:/absolute/path\"" "(127(\\.${octet}){3}:[0-9]{1,5}|\\[::1]:[0-9]{1,5}|unix:/.+)";

  # A path in a unit, where spaces, quotes and percent signs have a meaning.
  unitPath = matching "absolute path, as a string, without spaces, quotes and \"%\", and without \"/\" at its end" "(/[^/%\"'\\[:space:][:cntrl:]]+)+";

  # A key that systemd reads at start. A path literal would be copied into the store,
  # which everybody can read.
  secretFile = where unitPath "absolute path outside the Nix store, as a string" (
    text: !(lib.hasPrefix builtins.storeDir text) && !(builtins.hasContext text)
  );

  # Text, or bytes that are no text, as `{ base64 = "…"; }`.
  bytes = types.either types.str (
    types.submodule {
      options.base64 = lib.mkOption {
        type = types.str;
        description = "The bytes in base64, for what is not UTF-8 text.";
        example = "H4sIAAAAAAAAA…";
      };
    }
  );
}
