# From the options to the contract's JSON. Pure, and byte-stable: the keys are sorted,
# what was not said is left out.
{ lib }:
let
  inherit (import ./types.nix { inherit lib; }) isUrl;

  given = lib.filterAttrs (_: value: value != null);

  # What a path may hold and a URL gives another meaning.
  escaped = lib.replaceStrings [ "%" "?" "#" " " ] [ "%25" "%3F" "%23" "%20" ];

  # A store path, a package or an absolute path becomes a file:// URL. The string keeps
  # its context, so that what it names stays in the system's closure.
  source =
    value:
    let
      text = "${value}";
    in
    if isUrl text then text else "file://${escaped text}";

  image =
    image:
    given {
      inherit (image)
        sha256
        sha256Url
        format
        firmware
        ;
    }
    // {
      url = source image.url;
    };

  # The credential through which the service gets an entry's key.
  credential = entry: "ssh-${entry}";

  network =
    network:
    if network.bridge != null then { inherit (network) bridge; } else { inherit (network) network; };

  provider =
    entry: provider:
    given {
      inherit (provider)
        type
        uri
        pool
        virtType
        installGuestAgent
        vendorData
        maxConcurrent
        ;
    }
    // {
      network = network provider.network;
      images = lib.mapAttrs (_: image) provider.images;
    }
    // lib.optionalAttrs (provider.ssh != null) {
      ssh = {
        keyCredential = credential entry;
        inherit (provider.ssh) knownHosts;
      };
    };

  offered =
    images: entry:
    lib.filterAttrs (_: image: image.providers == null || lib.elem entry image.providers) images;

  # An image for some entries only stands with each of these; one for all at the top.
  forEntry =
    cfg: entry: settings:
    let
      some = offered (lib.filterAttrs (_: image: image.providers != null) cfg.images) entry;
    in
    settings // { images = some // settings.images; };
in
{
  inherit credential;

  # The images that an entry offers, by key.
  imagesOf = cfg: entry: offered cfg.images entry // cfg.providers.${entry}.images;

  # The configuration as a value.
  render =
    cfg:
    let
      everywhere = lib.filterAttrs (_: image: image.providers == null) cfg.images;
      rendered = given {
        images = lib.mapAttrs (_: image) everywhere;
        providers = lib.mapAttrs (
          entry: settings: provider entry (forEntry cfg entry settings)
        ) cfg.providers;
        proxies = lib.mapAttrs (_: given) cfg.proxies;
        health = given cfg.health;
        metrics = given cfg.metrics;
      };
    in
    lib.recursiveUpdate rendered cfg.settings;
}
