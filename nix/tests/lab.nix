# What the lab's host is given: the main job, on a pool and a network made by the module.
{
  services.proxyd = {
    enable = true;
    group = "proxies";
    createPool.vms.path = "/srv/vms";
    createNetwork.proxies = {
      address = "10.64.0.1";
      dhcpStart = "10.64.0.2";
      dhcpEnd = "10.64.0.254";
      bridge = "virbr-proxies";
    };
    providers.home = {
      pool = "vms";
      network.network = "proxies";
    };
    images.debian-13.url = "http://192.168.122.1:8080/ready.qcow2";
    proxies.web = {
      image = "debian-13";
      vcpus = 2;
    };
    health = {
      url = "http://192.168.122.1:8080/generate_204";
      interval = "5s";
    };
  };
}
