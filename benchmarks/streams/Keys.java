import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Kafka Streams as a store of keys, for the restore benchmark; run by Totals' settings: java Keys JOB.json */
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

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            store = given.getStateStore("totals");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            try {
                Put put = read.readValue(record.value());
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
    }

    public static void main(String[] args) throws Exception {
        var job = Totals.read(args[0]);
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Totals.supplier(job), Serdes.String(), Serdes.ByteArray()));
        builder.stream((String) job.get("input"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .process(Store::new, "totals")
            .to((String) job.get("output"), Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        Totals.run(builder, job);
    }
}
