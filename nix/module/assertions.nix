# What no single option can tell: names, references, collisions and secrets. Each message
# begins with the option it is about.
{ config, lib, ... }:
let
  cfg = config.services.proxyd;
  own = import ./types.nix { inherit lib; };
  addresses = import ./addresses.nix { inherit lib; };
  inherit (import ./rendering.nix { inherit lib; }) imagesOf;

  entries = lib.attrNames cfg.providers;
  listed = lib.concatMapStringsSep ", " (name: ''"${name}"'');

  # `problems` is a list of sentences; none is good.
  about =
    option: problems:
    map (problem: {
      assertion = false;
      message = "services.proxyd.${option}: ${problem}";
    }) problems;
  when = lib.optional;
  eachOf = attrs: check: lib.concatLists (lib.mapAttrsToList check attrs);

  names =
    option: what: attrs:
    about option (
      map (name: ''"${name}" is no name of ${what}: ${own.identifierRule}'') (
        lib.filter (name: !own.isIdentifier name) (lib.attrNames attrs)
      )
    );

  # What would be readable for everybody in the store. No pattern: Nix' own matcher ends
  # in a crash on a text of some size.
  holdsKey =
    bytes: builtins.isString bytes && lib.replaceStrings [ "PRIVATE KEY-----" ] [ "" ] bytes != bytes;
  secret =
    option: bytes:
    about option (
      when (holdsKey bytes) "it holds a private key, and would stand in the Nix store, where everybody can read it: have the guest fetch it"
    );
  holdsPassword =
    url: builtins.isString url && builtins.match "[a-zA-Z+]+://[^/?#]*:[^/?#]*@.*" url != null;
  openUrl =
    option: url:
    about option (
      when (holdsPassword url) "the URL has a password in it, which would stand in the Nix store, where everybody can read it: use a URL without"
    );

  image =
    option: image:
    about option (
      when (
        image.sha256 != null && image.sha256Url != null
      ) "both sha256 and sha256Url are given: keep one of them"
    )
    ++ openUrl "${option}.url" image.url
    ++ openUrl "${option}.sha256Url" image.sha256Url;

  unknownEntries =
    key: image:
    about "images.${key}.providers" (
      map (entry: ''there is no provider entry "${entry}": there is ${listed entries}'') (
        lib.subtractLists entries (if image.providers == null then [ ] else image.providers)
      )
    );

  hasHostKey =
    text:
    lib.any (line: builtins.match "[[:space:]]*([^#[:space:]].*)" line != null) (
      lib.splitString "\n" text
    );

  ssh =
    entry:
    { uri, ssh, ... }:
    about "providers.${entry}.ssh" (
      when (
        own.isOverSsh uri && ssh == null
      ) "it is missing, and the uri ${uri} goes over SSH: give keyFile and knownHosts"
      ++ when (
        !own.isOverSsh uri && ssh != null
      ) "the uri ${uri} does not go over SSH: leave ssh out, or make it qemu+ssh://user@host/system"
    )
    ++ lib.optionals (ssh != null) (
      secret "providers.${entry}.ssh.knownHosts" ssh.knownHosts
      ++ about "providers.${entry}.ssh.knownHosts" (
        when (
          !hasHostKey ssh.knownHosts
        ) "it has no host key, so no host would be let in: give what ssh-keyscan prints"
      )
    );

  network =
    entry:
    { network, ... }:
    about "providers.${entry}.network" (
      when (
        network.network != null && network.bridge != null
      ) "both network and bridge are given: keep one of them"
      ++ when (
        network.network == null && network.bridge == null
      ) "it names nothing: give network or bridge"
    );

  provider =
    entry: settings:
    ssh entry settings
    ++ network entry settings
    ++ secret "providers.${entry}.vendorData" settings.vendorData
    ++ names "providers.${entry}.images" "an image" settings.images
    ++ eachOf settings.images (key: image "providers.${entry}.images.${key}");

  isKey = own.isIdentifier;

  # The entry that a Proxy runs at, if that can be told.
  entryOf =
    proxy:
    if proxy.provider != null then
      (if cfg.providers ? ${proxy.provider} then proxy.provider else null)
    else if lib.length entries == 1 then
      lib.head entries
    else
      null;

  reference =
    name: proxy:
    let
      entry = entryOf proxy;
      offered = lib.attrNames (imagesOf cfg entry);
      offers = if offered == [ ] then "none: add one under images, or give a URL" else listed offered;
    in
    about "proxies.${name}.provider" (
      when (
        proxy.provider == null && lib.length entries > 1
      ) "it is missing, and there are several entries: name one of ${listed entries}"
      ++ when (
        proxy.provider != null && entry == null
      ) ''there is no provider entry "${proxy.provider}": there is ${listed entries}''
    )
    ++ about "proxies.${name}.image" (
      when (
        entry != null && isKey proxy.image && !lib.elem proxy.image offered
      ) ''the entry "${entry}" offers no image "${proxy.image}": it offers ${offers}''
    );

  # A network with bits beyond its mask opens the proxy to more than meant.
  beyondMask =
    client:
    let
      parts = lib.splitString "/" client;
    in
    lib.length parts == 2
    && !(lib.hasInfix ":" client)
    && addresses.hostBits (lib.head parts) (lib.toInt (lib.last parts)) != 0;

  clients =
    name: networks:
    about "proxies.${name}.allowedClients" (
      map (
        client:
        "${client} has bits set beyond its mask: give the network's own address, or the host's without a mask"
      ) (lib.filter beyondMask networks)
      ++ when (
        lib.length networks > 1024
      ) "${toString (lib.length networks)} networks are too many: give at most 1024"
    );

  proxy =
    name: proxy:
    reference name proxy
    ++ clients name (if proxy.allowedClients == null then [ ] else proxy.allowedClients)
    ++ about "proxies.${name}" (
      when (isKey proxy.image && (proxy.imageSha256 != null || proxy.imageFormat != null))
        ''imageSha256 and imageFormat go with an image given as a URL, and "${proxy.image}" is a key: say them under images''
    )
    ++ openUrl "proxies.${name}.image" proxy.image
    ++ openUrl "proxies.${name}.healthUrl" proxy.healthUrl
    ++ secret "proxies.${name}.userData" proxy.userData
    ++ secret "proxies.${name}.networkConfig" proxy.networkConfig;

  health =
    let
      inherit (cfg.health) interval timeout;
      most = if interval == null then "30s" else interval;
    in
    about "health.timeout" (
      when (
        timeout != null && own.milliseconds timeout > own.milliseconds most
      ) "${timeout} is more than the interval of ${most}: a probe must be over before the next begins"
    )
    ++ openUrl "health.url" cfg.health.url;

  orFormat = format: if format == null then "qcow2" else format;

  # Everything that wants a base: an entry's images, and Proxies' images by URL.
  claims =
    eachOf cfg.providers (
      entry: _:
      lib.mapAttrsToList (key: image: {
        inherit entry key;
        url = "${image.url}";
        inherit (image) sha256;
        format = orFormat image.format;
        option = ''image "${key}" of entry "${entry}"'';
      }) (imagesOf cfg entry)
    )
    ++ eachOf cfg.proxies (
      name: proxy:
      when (!isKey proxy.image && entryOf proxy != null) {
        entry = entryOf proxy;
        key = builtins.substring 0 16 (builtins.hashString "sha256" proxy.image);
        url = proxy.image;
        sha256 = proxy.imageSha256;
        format = orFormat proxy.imageFormat;
        option = "proxies.${name}.image";
      }
    );

  same =
    one: two:
    one.entry == two.entry
    && one.key == two.key
    && one.url == two.url
    && one.format == two.format
    && (one.sha256 == null || two.sha256 == null || lib.toLower one.sha256 == lib.toLower two.sha256);

  # `claimants` want what only one image can have.
  collide =
    shared: claimants:
    let
      # One digest counts for all that have none.
      pinned = lib.findFirst (claim: claim.sha256 != null) (lib.head claimants) claimants;
      others = lib.filter (claim: !same pinned claim) claimants;
    in
    about "images" (
      when (others != [ ])
        "${(lib.head others).option} and ${pinned.option} would share ${shared}: rename one of these keys or entries, or make them the same image"
    );

  groups = nameOf: eachOf (lib.groupBy nameOf claims) collide;
  collisions =
    groups (claim: "the file base-${claim.entry}-${claim.key}.${claim.format}")
    ++ groups (claim: "the key ${claim.key} of entry ${claim.entry}");

  libvirtNames =
    option: attrs:
    about option (
      map (name: ''"${name}" is no name for libvirt: leave out "/" and spaces at its ends'') (
        lib.filter (name: builtins.match "[A-Za-z0-9_.+-]+" name == null) (lib.attrNames attrs)
      )
    );

  createdNetwork =
    name: network:
    let
      inherit (network) prefixLength;
      first = addresses.networkOf network.address prefixLength;
      last = first + addresses.size prefixLength - 1;
      usable = address: addresses.toNumber address > first && addresses.toNumber address < last;
      outside = lib.filter (key: !usable network.${key}) [
        "address"
        "dhcpStart"
        "dhcpEnd"
      ];
      within =
        addresses.toNumber network.dhcpStart <= addresses.toNumber network.address
        && addresses.toNumber network.address <= addresses.toNumber network.dhcpEnd;
    in
    about "createNetwork.${name}" (
      map (
        key:
        "${key} ${network.${key}} is no address for a host in ${network.address}/${toString prefixLength}"
      ) outside
      ++ when (
        addresses.toNumber network.dhcpStart > addresses.toNumber network.dhcpEnd
      ) "dhcpStart ${network.dhcpStart} is beyond dhcpEnd ${network.dhcpEnd}"
      ++ when within "the range for guests holds the host's own address ${network.address}"
    );
in
{
  config = lib.mkIf cfg.enable {
    assertions =
      about "providers" (
        when (entries == [ ]) "there is no entry: add one, or leave it out for one of the defaults, local"
      )
      ++ about "proxies" (
        when (
          lib.length (lib.attrNames cfg.proxies) > 4096
        ) "these are too many Proxies: one daemon keeps at most 4096"
      )
      ++ names "providers" "an entry" cfg.providers
      ++ names "images" "an image" cfg.images
      ++ names "proxies" "a Proxy" cfg.proxies
      ++ eachOf cfg.images (key: settings: image "images.${key}" settings ++ unknownEntries key settings)
      ++ eachOf cfg.providers provider
      ++ eachOf cfg.proxies proxy
      ++ health
      ++ collisions
      ++ libvirtNames "createPool" cfg.createPool
      ++ libvirtNames "createNetwork" cfg.createNetwork
      ++ eachOf cfg.createNetwork createdNetwork;
  };
}
