import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** For each line of standard input, a key in hexadecimal: its partition for each count given as an argument. */
public class Partitions {
    public static void main(String[] counts) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            byte[] key = HexFormat.of().parseHex(line);
            for (String count : counts) {
                System.out.print(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(count)) + " ");
            }
            System.out.println();
        }
    }
}
