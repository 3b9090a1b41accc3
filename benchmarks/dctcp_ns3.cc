// DCTCP through one switch, by ns-3: N senders, one receiver, RED that marks at K.
// Prints the utilisation of the link to the receiver, and the mean queue in packets.
#include <ns3/applications-module.h>
#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#include <ns3/traffic-control-module.h>

#include <cstdio>

using namespace ns3;

static double total = 0;
static uint64_t samples = 0, sent = 0;
static double warm = 0;

static void Sample(Ptr<QueueDisc> queue, Time every) {
    total += queue->GetNPackets();
    samples += 1;
    Simulator::Schedule(every, &Sample, queue, every);
}

static void Sent(Ptr<const Packet> packet) {
    if (Simulator::Now().GetSeconds() >= warm) sent += packet->GetSize();
}

int main(int argc, char** argv) {
    uint32_t senders = 2, mark = 300, payload = 1000;
    double seconds = 0.02, gbps = 100;
    warm = 0.005;
    CommandLine cmd;
    cmd.AddValue("senders", "", senders);
    cmd.AddValue("mark", "", mark);
    cmd.AddValue("seconds", "", seconds);
    cmd.AddValue("gbps", "", gbps);
    cmd.Parse(argc, argv);

    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpDctcp"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(payload));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 24));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 24));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(2)));
    Config::SetDefault("ns3::TcpDctcp::DctcpShiftG", DoubleValue(1.0 / 16));
    Config::SetDefault("ns3::RedQueueDisc::UseEcn", BooleanValue(true));
    Config::SetDefault("ns3::RedQueueDisc::UseHardDrop", BooleanValue(false));
    Config::SetDefault("ns3::RedQueueDisc::MeanPktSize", UintegerValue(payload + 54));
    Config::SetDefault("ns3::RedQueueDisc::QW", DoubleValue(1.0));
    Config::SetDefault("ns3::RedQueueDisc::MinTh", DoubleValue(mark));
    Config::SetDefault("ns3::RedQueueDisc::MaxTh", DoubleValue(mark));
    Config::SetDefault("ns3::RedQueueDisc::MaxSize", QueueSizeValue(QueueSize("16384p")));
    Config::SetDefault("ns3::DropTailQueue<Packet>::MaxSize",
                       QueueSizeValue(QueueSize("1p")));

    NodeContainer hosts, middle;
    hosts.Create(senders + 1);
    middle.Create(1);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(gbps * 1e9)));
    link.SetChannelAttribute("Delay", StringValue("1us"));
    InternetStackHelper stack;
    stack.InstallAll();
    TrafficControlHelper red, plain;
    red.SetRootQueueDisc("ns3::RedQueueDisc");
    plain.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize",
                           QueueSizeValue(QueueSize("100000p")));
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4InterfaceContainer last;
    QueueDiscContainer queues;
    Ptr<NetDevice> neck;
    for (uint32_t i = 0; i <= senders; i++) {
        NetDeviceContainer pair = link.Install(hosts.Get(i), middle.Get(0));
        if (i == senders) {
            queues = red.Install(pair.Get(1));
            neck = pair.Get(1);
            plain.Install(pair.Get(0));
        } else {
            plain.Install(pair);
        }
        last = addresses.Assign(pair);
        addresses.NewNetwork();
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    PacketSinkHelper sink("ns3::TcpSocketFactory",
                          InetSocketAddress(Ipv4Address::GetAny(), 5000));
    sink.Install(hosts.Get(senders));
    for (uint32_t i = 0; i < senders; i++) {
        BulkSendHelper bulk("ns3::TcpSocketFactory",
                            InetSocketAddress(last.GetAddress(0), 5000));
        bulk.SetAttribute("SendSize", UintegerValue(64000));
        bulk.Install(hosts.Get(i)).Start(MicroSeconds(10 + 7 * i));
    }
    neck->TraceConnectWithoutContext("PhyTxEnd", MakeCallback(&Sent));
    Simulator::Schedule(Seconds(warm), &Sample, queues.Get(0), NanoSeconds(3100));
    Simulator::Stop(Seconds(seconds));
    Simulator::Run();
    std::printf("%.5f %.2f\n", sent * 8 / ((seconds - warm) * gbps * 1e9), total / samples);
    Simulator::Destroy();
}
