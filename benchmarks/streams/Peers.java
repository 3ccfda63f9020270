import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/** Kafka Streams' own joins and windows, by the settings of Totals. Run: java Peers JOB.json */
public final class Peers {
    public static final class Trade {
        public String id, account, symbol, side;
        public long quantity, price, ts;
    }

    public static final class Price {
        public String symbol, source;
        public long price, ts;
    }

    public static final class Enriched {
        public String id, symbol;
        public long price, value;
    }

    public static final class Order {
        public String id, account;
        public long quantity, ts;
    }

    public static final class Fill {
        public String id, order;
        public long price, ts;
    }

    public static final class Matched {
        public String order, fill;
        public long value;
    }

    public static final class CustomersOrder {
        public String customer;
        public long amount;
    }

    public static final class Customer {
        public String name;
    }

    public static final class Joined {
        public CustomersOrder order;
        public Customer customer;
    }

    public static final class Candle {
        public String symbol;
        public long start, open, high, low, close, volume;
    }

    public static final class Visit {
        public String symbol;
        public long start, last, trades, volume;
    }

    public static final class Passed {
        public String id, symbol;
        public long ts;
    }

    /** JSON by Jackson; a null stays null. */
    static <T> Serde<T> json(Class<T> kind) {
        ObjectReader read = Totals.JSON.readerFor(kind);
        ObjectWriter write = Totals.JSON.writerFor(kind);
        return Serdes.serdeFrom(
            (topic, value) -> {
                try {
                    return value == null ? null : write.writeValueAsBytes(value);
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            },
            (topic, data) -> {
                try {
                    return data == null ? null : read.readValue(data);
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
    }

    /** The five numbers of a candle, as a store keeps them. */
    static Serde<long[]> numbers() {
        return Serdes.serdeFrom(
            (topic, value) -> {
                if (value == null) {
                    return null;
                }
                ByteBuffer buffer = ByteBuffer.allocate(8 * value.length);
                buffer.asLongBuffer().put(value);
                return buffer.array();
            },
            (topic, data) -> {
                if (data == null) {
                    return null;
                }
                long[] value = new long[data.length / 8];
                ByteBuffer.wrap(data).asLongBuffer().get(value);
                return value;
            });
    }

    static KStream<String, Enriched> enrich(StreamsBuilder builder, Map<?, ?> job, List<String> inputs) {
        KStream<String, Trade> trades = builder.stream(inputs.get(0), Consumed.with(Serdes.String(), json(Trade.class)));
        KTable<String, Price> prices = builder.table(
            inputs.get(1),
            Consumed.with(Serdes.String(), json(Price.class)),
            Materialized.as(Stores.inMemoryKeyValueStore("newest")));
        ValueJoiner<Trade, Price, Enriched> join = (trade, price) -> {
            Enriched found = new Enriched();
            found.id = trade.id;
            found.symbol = trade.symbol;
            found.price = price == null ? -1 : price.price;
            found.value = price == null ? 0 : price.price * trade.quantity;
            return found;
        };
        return job.get("join").equals("inner") ? trades.join(prices, join) : trades.leftJoin(prices, join);
    }

    /** The foreign-key join of examples/orders. */
    static KStream<String, Joined> foreign(StreamsBuilder builder, Map<?, ?> job, List<String> inputs) {
        KTable<String, CustomersOrder> orders =
            builder.table(inputs.get(0), Consumed.with(Serdes.String(), json(CustomersOrder.class)));
        KTable<String, Customer> customers =
            builder.table(inputs.get(1), Consumed.with(Serdes.String(), json(Customer.class)));
        ValueJoiner<CustomersOrder, Customer, Joined> join = (order, customer) -> {
            Joined found = new Joined();
            found.order = order;
            found.customer = customer;
            return found;
        };
        Materialized<String, Joined, KeyValueStore<Bytes, byte[]>> kept =
            Materialized.with(Serdes.String(), json(Joined.class));
        return (job.get("join").equals("inner")
            ? orders.join(customers, order -> order.customer, join, kept)
            : orders.leftJoin(customers, order -> order.customer, join, kept)).toStream();
    }

    static KStream<String, Matched> match(StreamsBuilder builder, Map<?, ?> job, List<String> inputs) {
        KStream<String, Order> orders = builder.stream(inputs.get(0), Consumed.with(Serdes.String(), json(Order.class)));
        KStream<String, Fill> fills = builder.stream(inputs.get(1), Consumed.with(Serdes.String(), json(Fill.class)));
        Duration within = millis(job, "within_ms"), grace = millis(job, "grace_ms");
        JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(within, grace);
        // RocksDB, the default: the in-memory store looks at every millisecond of the window for each record.
        StreamJoined<String, Order, Fill> kept = StreamJoined.with(Serdes.String(), json(Order.class), json(Fill.class));
        ValueJoiner<Order, Fill, Matched> join = (order, fill) -> {
            Matched found = new Matched();
            found.order = order == null ? "" : order.id;
            found.fill = fill == null ? "" : fill.id;
            found.value = order == null || fill == null ? 0 : order.quantity * fill.price;
            return found;
        };
        return job.get("join").equals("inner")
            ? orders.join(fills, join, windows, kept)
            : orders.outerJoin(fills, join, windows, kept);
    }

    static KStream<String, Candle> candles(StreamsBuilder builder, Map<?, ?> job, List<String> inputs) {
        Duration size = millis(job, "size_ms"), grace = millis(job, "grace_ms");
        return builder.stream(inputs.get(0), Consumed.with(Serdes.String(), json(Trade.class)))
            .groupByKey(Grouped.with(Serdes.String(), json(Trade.class)))
            .windowedBy(TimeWindows.ofSizeAndGrace(size, grace).advanceBy(millis(job, "every_ms")))
            .aggregate(
                () -> null,
                Peers::add,
                Materialized.<String, long[]>as(Stores.inMemoryWindowStore("open", size.plus(grace), size, false))
                    .withKeySerde(Serdes.String())
                    .withValueSerde(numbers()))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream()
            .map((window, candle) -> {
                Candle closed = new Candle();
                closed.symbol = window.key();
                closed.start = window.window().start();
                closed.open = candle[0];
                closed.high = candle[1];
                closed.low = candle[2];
                closed.close = candle[3];
                closed.volume = candle[4];
                return KeyValue.pair(window.key(), closed);
            });
    }

    static long[] add(String symbol, Trade trade, long[] candle) {
        long price = trade.price;
        if (candle == null) {
            return new long[] {price, price, price, price, trade.quantity};
        }
        return new long[] {
            candle[0], Math.max(candle[1], price), Math.min(candle[2], price), price, candle[4] + trade.quantity};
    }

    static KStream<String, Visit> visits(StreamsBuilder builder, Map<?, ?> job, List<String> inputs) {
        Duration gap = millis(job, "gap_ms"), grace = millis(job, "grace_ms");
        // RocksDB, the default: the in-memory store took twice as long here.
        return builder.stream(inputs.get(0), Consumed.with(Serdes.String(), json(Trade.class)))
            .groupByKey(Grouped.with(Serdes.String(), json(Trade.class)))
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(gap, grace))
            .aggregate(
                () -> new long[] {0, 0},
                (symbol, trade, counted) -> new long[] {counted[0] + 1, counted[1] + trade.quantity},
                (symbol, one, other) -> new long[] {one[0] + other[0], one[1] + other[1]},
                Materialized.<String, long[]>as(Stores.persistentSessionStore("open", gap.plus(grace).multipliedBy(10)))
                    .withKeySerde(Serdes.String())
                    .withValueSerde(numbers()))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream()
            .map((window, counted) -> {
                Visit closed = new Visit();
                closed.symbol = window.key();
                closed.start = window.window().start();
                closed.last = window.window().end();
                closed.trades = counted[0];
                closed.volume = counted[1];
                return KeyValue.pair(window.key(), closed);
            });
    }

    /** Kafka Streams has no deduplication: this is the processor with a window store that its documentation gives. */
    static KStream<String, Passed> once(StreamsBuilder builder, Map<?, ?> job, List<String> inputs) {
        Duration ttl = millis(job, "ttl_ms");
        builder.addStateStore(Stores.windowStoreBuilder(
            Stores.persistentWindowStore("seen", ttl, ttl, false), Serdes.String(), Serdes.Long()));
        return builder.stream(inputs.get(0), Consumed.with(Serdes.String(), json(Trade.class)))
            .processValues(() -> new ContextualFixedKeyProcessor<String, Trade, Trade>() {
                private WindowStore<String, Long> seen;

                @Override
                public void init(FixedKeyProcessorContext<String, Trade> context) {
                    super.init(context);
                    seen = context.getStateStore("seen");
                }

                @Override
                public void process(FixedKeyRecord<String, Trade> record) {
                    long at = record.timestamp();
                    try (WindowStoreIterator<Long> before = seen.fetch(record.key(), at - ttl.toMillis() + 1, at)) {
                        if (before.hasNext()) {
                            return;
                        }
                    }
                    seen.put(record.key(), at, at);
                    context().forward(record);
                }
            }, "seen")
            .mapValues(trade -> {
                Passed passed = new Passed();
                passed.id = trade.id;
                passed.symbol = trade.symbol;
                passed.ts = trade.ts;
                return passed;
            });
    }

    static Duration millis(Map<?, ?> job, String name) {
        return Duration.ofMillis(((Number) job.get(name)).longValue());
    }

    @SuppressWarnings("unchecked")
    public static void main(String[] args) throws Exception {
        Map<?, ?> job = Totals.read(args[0]);
        List<String> inputs = (List<String>) job.get("inputs");
        String output = (String) job.get("output");
        StreamsBuilder builder = new StreamsBuilder();
        switch ((String) job.get("work")) {
            case "enrich" -> enrich(builder, job, inputs).to(output, Produced.with(Serdes.String(), json(Enriched.class)));
            case "match", "pairs" -> match(builder, job, inputs).to(output, Produced.with(Serdes.String(), json(Matched.class)));
            case "foreign" -> foreign(builder, job, inputs).to(output, Produced.with(Serdes.String(), json(Joined.class)));
            case "visits" -> visits(builder, job, inputs).to(output, Produced.with(Serdes.String(), json(Visit.class)));
            case "once" -> once(builder, job, inputs).to(output, Produced.with(Serdes.String(), json(Passed.class)));
            default -> candles(builder, job, inputs).to(output, Produced.with(Serdes.String(), json(Candle.class)));
        }
        Totals.run(builder, job);
    }
}
