# What a machine with the module is, each fact by a name that says it.
{
  lib,
  configured,
  machine,
}:
let
  url = "https://example.org/a.qcow2";
  attic = {
    uri = "qemu+ssh://operator@attic/system";
    ssh = {
      keyFile = "/run/secrets/attic";
      knownHosts = "attic ssh-ed25519 AAAA";
    };
  };
  plain = configured { };
  text = config: config.services.proxyd.configFile.text;
  json = config: builtins.fromJSON (text config);
  unit = config: config.systemd.services.proxyd;
  # All of the unit that a restart follows from.
  lasting = config: removeAttrs (unit config) [ "reloadTriggers" ];
  pinned = configured {
    images.a = {
      inherit url;
      providers = [ "local" ];
    };
  };
  remote = configured { providers = { inherit attic; }; };
in
{
  the-example-is-rendered-byte-for-byte =
    text (machine ../example.nix) == builtins.readFile ./example.json;

  the-order-of-definitions-does-not-matter =
    text (machine {
      imports = [
        { services.proxyd.images.a.url = url; }
        { services.proxyd.images.b.url = url; }
        { services.proxyd.enable = true; }
      ];
    }) == text (machine {
      imports = [
        { services.proxyd.enable = true; }
        { services.proxyd.images.b.url = url; }
        { services.proxyd.images.a.url = url; }
      ];
    });

  a-changed-configuration-reloads-and-restarts-nothing =
    lasting plain == lasting pinned && (unit plain).reloadTriggers != (unit pinned).reloadTriggers;

  an-image-for-some-entries-stands-with-these =
    (json pinned).images == { } && (json pinned).providers.local.images.a.url == url;

  an-entrys-own-image-wins =
    (json (configured {
      images.a = {
        inherit url;
        providers = [ "local" ];
      };
      providers.local.images.a.url = "https://example.org/own";
    })).providers.local.images.a.url == "https://example.org/own";

  settings-come-last =
    (json (configured {
      health.interval = "30s";
      settings.health.interval = "1m";
    })).health.interval == "1m";

  a-path-becomes-a-url =
    (json (configured {
      images.a.url = "/srv/100% mine?.qcow2";
    })).images.a.url == "file:///srv/100%25%20mine%3F.qcow2";

  a-store-path-stays-in-the-closure = builtins.hasContext (
    text (configured {
      images.a.url = "${../package.nix}";
    })
  );

  a-key-is-a-credential-and-not-in-the-file =
    (unit remote).serviceConfig.LoadCredential == [ "ssh-attic:/run/secrets/attic" ]
    && (json remote).providers.attic.ssh.keyCredential == "ssh-attic"
    && !lib.hasInfix "/run/secrets" (text remote);

  libvirt-comes-with-a-local-entry = plain.virtualisation.libvirtd.enable;
  but-is-the-operators-to-refuse =
    !(machine {
      services.proxyd.enable = true;
      virtualisation.libvirtd.enable = false;
    }).virtualisation.libvirtd.enable;
  libvirt-is-not-needed-for-other-hosts = !remote.virtualisation.libvirtd.enable;
  a-group-that-is-not-there-is-not-asked-for =
    plain.users.users.proxyd.extraGroups == [ "libvirtd" ]
    && remote.users.users.proxyd.extraGroups == [ ]
    && (unit remote).serviceConfig.SupplementaryGroups == [ "" ];
  nothing-is-made-for-other-hosts = !remote.systemd.services ? proxyd-libvirt;
  nor-where-nothing-is-to-be-made =
    !(configured {
      createPool = { };
      createNetwork = { };
    }).systemd.services
      ? proxyd-libvirt;

  a-pool-elsewhere-can-be-written =
    (unit (configured {
      createPool.vms.path = "/srv/vms";
    })).serviceConfig.ReadWritePaths == [ "-/srv/vms" ];

  nobody-is-let-in-unasked = !lib.hasInfix "org.proxyd1" plain.security.polkit.extraConfig;
  a-group-is-let-in-when-asked =
    lib.hasInfix ''subject.isInGroup("proxies")''
      (configured { group = "proxies"; }).security.polkit.extraConfig;
  and-is-there = (configured { group = "proxies"; }).users.groups ? proxies;

  the-bus-can-start-it = lib.elem "dbus-org.proxyd1.service" (unit plain).aliases;
  it-is-off-unless-enabled = !(machine { }).systemd.services ? proxyd;
}
