import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Kafka Streams as a store of keys, for the benchmarks restore and disk; run by Totals' settings: java Keys JOB.json */
public final class Keys {
    static final ObjectMapper JSON = new ObjectMapper();

    public static final class Put {
        public String key, text;
        public long version;
        public boolean look;
    }

    public static final class Seen {
        public String key;
        public long version;
    }

    static final class Store implements Processor<byte[], byte[], byte[], byte[]> {
        private final ObjectReader read = JSON.readerFor(Put.class);
        private final ObjectWriter write = JSON.writerFor(Seen.class);
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<String, byte[]> store;
        private final boolean counts;

        Store(boolean counts) {
            this.counts = counts;
        }

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            store = given.getStateStore("totals");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            try {
                Put put = read.readValue(record.value());
                if (counts) {
                    count(record, put);
                    return;
                }
                if (!put.look) {
                    store.put(put.key, record.value());
                    return;
                }
                byte[] found = store.get(put.key);
                Seen seen = new Seen();
                seen.key = put.key;
                seen.version = found == null ? -1 : ((Put) read.readValue(found)).version;
                context.forward(record.withValue(write.writeValueAsBytes(seen)));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        /** Reads the row of each record, and writes it with the number of its puts so far: of the benchmark disk. */
        private void count(Record<byte[], byte[]> record, Put put) throws IOException {
            byte[] old = store.get(put.key);
            long version = old == null ? -1 : ByteBuffer.wrap(old).getLong();
            if (!put.look) {
                byte[] text = put.text.getBytes(StandardCharsets.UTF_8);
                store.put(put.key, ByteBuffer.allocate(8 + text.length).putLong(version + 1).put(text).array());
                return;
            }
            Seen seen = new Seen();
            seen.key = put.key;
            seen.version = version;
            context.forward(record.withValue(write.writeValueAsBytes(seen)));
        }
    }

    public static void main(String[] args) throws Exception {
        var job = Totals.read(args[0]);
        boolean counts = Boolean.TRUE.equals(job.get("counts"));
        StreamsBuilder builder = new StreamsBuilder();
        var store = Stores.keyValueStoreBuilder(Totals.supplier(job), Serdes.String(), Serdes.ByteArray());
        builder.addStateStore(counts ? store.withCachingEnabled() : store);
        builder.stream((String) job.get("input"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .process(() -> new Store(counts), "totals")
            .to((String) job.get("output"), Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        Totals.run(builder, job);
    }
}
