import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** (f) Kafka Streams, exactly_once_v2, an in-memory store, one thread. Run: java Totals JOB.json */
public final class Totals {
    static final ObjectMapper JSON = new ObjectMapper();

    public static final class Trade {
        public String id, account, symbol, side;
        public long quantity, price, ts;
    }

    public static final class Running {
        public String id, account;
        public long total, count;
    }

    static final class Add implements Processor<byte[], byte[], byte[], byte[]> {
        private final ObjectReader read = JSON.readerFor(Trade.class);
        private final ObjectWriter write = JSON.writerFor(Running.class);
        private final Running running = new Running();
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<String, byte[]> store;

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            store = given.getStateStore("totals");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            try {
                Trade trade = read.readValue(record.value());
                byte[] old = store.get(trade.account);
                ByteBuffer was = old == null ? null : ByteBuffer.wrap(old);
                long amount = trade.quantity * trade.price;
                running.id = trade.id;
                running.account = trade.account;
                running.total = (was == null ? 0 : was.getLong()) + (trade.side.equals("BUY") ? amount : -amount);
                running.count = (was == null ? 0 : was.getLong()) + 1;
                store.put(trade.account, ByteBuffer.allocate(16).putLong(running.total).putLong(running.count).array());
                context.forward(record.withValue(write.writeValueAsBytes(running)));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        Map<?, ?> job = read(args[0]);
        boolean caching = Boolean.TRUE.equals(job.get("caching"));
        var store = Stores.keyValueStoreBuilder(supplier(job), Serdes.String(), Serdes.ByteArray());
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(caching ? store.withCachingEnabled() : store);
        KStream<byte[], byte[]> trades =
            builder.stream((String) job.get("input"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()));
        if (Boolean.TRUE.equals(job.get("rekeyed"))) {
            ObjectReader read = JSON.readerFor(Trade.class);
            trades = trades.selectKey((key, value) -> account(read, value))
                .repartition(Repartitioned.with(Serdes.ByteArray(), Serdes.ByteArray()).withName("by-account"));
        }
        trades.process(Add::new, "totals")
            .to((String) job.get("output"), Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        run(builder, job);
    }

    static byte[] account(ObjectReader read, byte[] value) {
        try {
            return ((Trade) read.readValue(value)).account.getBytes(StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The store that the job names: in memory, or RocksDB with the defaults of Kafka Streams. */
    static KeyValueBytesStoreSupplier supplier(Map<?, ?> job) {
        return "rocksdb".equals(job.get("store"))
            ? Stores.persistentKeyValueStore("totals") : Stores.inMemoryKeyValueStore("totals");
    }

    static Map<?, ?> read(String file) throws IOException {
        return JSON.readValue(new File(file), Map.class);
    }

    /** Runs the topology with the settings that all benchmarks share, until the process is told to stop. */
    static void run(StreamsBuilder builder, Map<?, ?> job) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, job.get("group"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, job.get("bootstrap"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        long commit = Math.round(((Number) job.get("commit_seconds")).doubleValue() * 1000);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, commit);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, job.get("state_dir"));
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");
        if (job.get("settings") instanceof Map<?, ?> more) {
            settings.putAll(more);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setGlobalStateRestoreListener(new Restores());
        streams.setStandbyUpdateListener(new Standbys());
        boolean leave = Boolean.TRUE.equals(job.get("leave"));
        CloseOptions how = CloseOptions.groupMembershipOperation(
            leave ? CloseOptions.GroupMembershipOperation.LEAVE_GROUP : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(how)));
        streams.start();
    }

    /** Tells how far the copy of a store has come, one JSON line each. */
    static final class Standbys implements StandbyUpdateListener {
        @Override
        public void onUpdateStart(TopicPartition partition, String store, long from) {}

        @Override
        public void onBatchLoaded(TopicPartition partition, String store, TaskId task, long end, long size, long of) {
            System.out.println("{\"standby\": " + end + ", \"of\": " + of + "}");
        }

        @Override
        public void onUpdateSuspended(TopicPartition partition, String store, long at, long end, SuspendReason why) {}
    }

    /** Tells how long the store took to restore, one JSON line each. */
    static final class Restores implements StateRestoreListener {
        private long began, told;

        @Override
        public void onRestoreStart(TopicPartition partition, String store, long from, long to) {
            began = told = System.currentTimeMillis();
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long count) {
            long now = System.currentTimeMillis();
            if (now - told >= 1000) { // the benchmark sees that it makes progress
                told = now;
                System.out.println("{\"restoring\": " + end + "}");
            }
        }

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long total) {
            long took = System.currentTimeMillis() - began;
            System.out.println("{\"restored\": " + total + ", \"restore_ms\": " + took + "}");
        }
    }
}
